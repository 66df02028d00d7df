"""A mail server that refuses each mail to ``busy@`` once."""

import smtplib
from pathlib import Path

from django.conf import settings
from django.core.mail.backends.filebased import EmailBackend

from tests.helpers.gates import once_only


class RefusesOnce(EmailBackend):
    def send_messages(self, email_messages):
        for message in email_messages:
            if "busy@" in message.to[0] and once_only(str(Path(settings.EMAIL_FILE_PATH) / "refused")):
                raise smtplib.SMTPServerDisconnected("busy")
        return super().send_messages(email_messages)
