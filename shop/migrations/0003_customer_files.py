import uuid

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0002_orders'),
    ]

    operations = [
        migrations.CreateModel(
            name='CustomerFile',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('text', models.TextField(verbose_name='text')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='handed in at')),
                ('job', models.UUIDField(blank=True, editable=False, null=True, verbose_name='job')),
            ],
            options={
                'verbose_name': 'customer file',
                'verbose_name_plural': 'customer files',
                'ordering': ['-created_at'],
            },
        ),
    ]
