from django.apps import apps
from django.db import migrations, models

#: A project may give the app another label.
JOBS = apps.get_containing_app_config("jobs.models").label


class OfJobs:
    """An operation on a table of the app ``jobs``."""

    def state_forwards(self, app_label, *given):
        super().state_forwards(JOBS, *given)

    def database_forwards(self, app_label, *given):
        super().database_forwards(JOBS, *given)

    def database_backwards(self, app_label, *given):
        super().database_backwards(JOBS, *given)


class AddColumn(OfJobs, migrations.AddField):
    pass


class AddIndex(OfJobs, migrations.AddIndex):
    pass


class Migration(migrations.Migration):
    # Apart from the tables: ``migrate --fake-initial`` looks for the columns of an initial one in this app's tables.

    dependencies = [("jobs_events", "0001_initial")]

    operations = [
        AddColumn(
            model_name='job',
            name='order_key',
            field=models.CharField(max_length=255, null=True, verbose_name='order key'),
        ),
        AddColumn(
            model_name='job',
            name='order_position',
            field=models.BigIntegerField(null=True),
        ),
        AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('order_key__isnull', False), ('state__in', ('scheduled', 'ready', 'running'))), fields=['order_key', 'order_position', 'state'], name='jobs_job_order'),
        ),
    ]
