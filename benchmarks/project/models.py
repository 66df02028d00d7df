from django.db import models


class User(models.Model):
    email = models.CharField(max_length=200)
    is_welcomed = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.email
