import uuid

from django.apps import apps
from django.db import migrations, models

#: A project may give the app another label.
JOBS = apps.get_containing_app_config("jobs.models").label


class Migration(migrations.Migration):
    initial = True

    dependencies = [(JOBS, "0001_initial")]

    operations = [
        migrations.CreateModel(
            name='Position',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('source', models.CharField(max_length=255)),
                ('name', models.CharField(max_length=255)),
                ('number', models.BigIntegerField(default=0)),
                ('gap_since', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': 'jobs_event_position',
            },
        ),
        migrations.AddConstraint(
            model_name='position',
            constraint=models.UniqueConstraint(fields=('source', 'name'), name='jobs_event_position_of'),
        ),
    ]
