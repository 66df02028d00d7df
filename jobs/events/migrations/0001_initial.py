import uuid

import django.db.models.functions.datetime
from django.apps import apps
from django.db import migrations, models

import jobs.models.fields

#: A project may give the app another label.
JOBS = apps.get_containing_app_config("jobs.models").label


class Migration(migrations.Migration):
    initial = True

    dependencies = [(JOBS, "0001_initial")]

    operations = [
        migrations.CreateModel(
            name='Event',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=jobs.models.fields.uuid7, editable=False, unique=True, verbose_name='event id')),
                ('name', models.CharField(max_length=255, verbose_name='name')),
                ('version', models.SmallIntegerField(db_default=1, default=1, verbose_name='version')),
                ('source', models.CharField(max_length=255, verbose_name='source')),
                ('order_key', models.CharField(max_length=255, null=True, verbose_name='order key')),
                ('data', jobs.models.fields.JSONText(db_default={}, default=dict, verbose_name='data')),
                ('headers', jobs.models.fields.Sparse(default=dict, null=True, verbose_name='headers')),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), default=django.db.models.functions.datetime.Now, verbose_name='happened at')),
                ('job', models.UUIDField(null=True, verbose_name='job')),
                ('relayed_at', models.DateTimeField(null=True, verbose_name='handed on at')),
                ('number', models.BigIntegerField(null=True, verbose_name='number')),
                ('sent_at', models.DateTimeField(null=True, verbose_name='published at')),
                ('was_refused', models.BooleanField(db_default=False, default=False)),
                ('received_at', models.DateTimeField(null=True, verbose_name='received at')),
                ('problem', models.TextField(null=True, verbose_name='problem')),
            ],
            options={
                'verbose_name': 'event',
                'verbose_name_plural': 'events',
                'db_table': 'jobs_event',
                'permissions': [('replay_event', 'Can replay events')],
            },
        ),
        migrations.CreateModel(
            name='Relay',
            fields=[
                ('id', models.SmallIntegerField(primary_key=True, serialize=False)),
                ('node', models.UUIDField(null=True)),
                ('place', models.BigIntegerField(default=0)),
            ],
            options={
                'db_table': 'jobs_event_relay',
            },
        ),
        migrations.CreateModel(
            name='Subscription',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('service', models.CharField(max_length=255, verbose_name='service')),
                ('handler', models.CharField(max_length=255, verbose_name='handler')),
                ('pattern', models.CharField(max_length=255, verbose_name='events')),
                ('version', models.SmallIntegerField(null=True, verbose_name='version')),
                ('queue', models.CharField(max_length=255, verbose_name='queue')),
                ('rank', models.SmallIntegerField(default=0)),
                ('is_ordered', models.BooleanField(default=True)),
                ('keep_failed', models.PositiveIntegerField(null=True, verbose_name='failed jobs that are kept')),
                ('since', models.DateTimeField(default=django.db.models.functions.datetime.Now, verbose_name='since')),
                ('before', models.JSONField(default=list)),
                ('defined_at', models.DateTimeField(default=django.db.models.functions.datetime.Now)),
                ('seen_at', models.DateTimeField(default=django.db.models.functions.datetime.Now)),
            ],
            options={
                'verbose_name': 'subscription',
                'verbose_name_plural': 'subscriptions',
                'db_table': 'jobs_subscription',
            },
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(condition=models.Q(('received_at__isnull', True), ('relayed_at__isnull', True)), fields=['id'], name='jobs_event_unrelayed'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(condition=models.Q(('received_at__isnull', False), ('relayed_at__isnull', True)), fields=['source', 'name', 'number'], name='jobs_event_parked'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(condition=models.Q(('number__isnull', False), ('received_at__isnull', True), ('sent_at__isnull', True)), fields=['id'], name='jobs_event_unsent'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(condition=models.Q(('number__isnull', False), ('received_at__isnull', True), ('sent_at__isnull', True)), fields=['source', 'name', 'sent_at', 'number'], name='jobs_event_unsent_of'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['name', 'id'], name='jobs_event_name'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(condition=models.Q(('problem__isnull', False)), fields=['id'], name='jobs_event_problem'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(condition=models.Q(('job__isnull', False)), fields=['job'], name='jobs_event_job'),
        ),
        migrations.AddConstraint(
            model_name='event',
            constraint=models.UniqueConstraint(condition=models.Q(('number__isnull', False)), fields=('source', 'name', 'number'), name='jobs_event_number'),
        ),
        migrations.AddConstraint(
            model_name='subscription',
            constraint=models.UniqueConstraint(fields=('service', 'handler'), name='jobs_subscription_handler'),
        ),
    ]
