import csv

from django import forms
from django.utils.translation import gettext_lazy as _

from shop.models import Customer


class SignUpForm(forms.ModelForm):
    class Meta:
        model = Customer
        fields = ["name", "email"]
        widgets = {
            "name": forms.TextInput(attrs={"autocomplete": "name"}),
            "email": forms.EmailInput(attrs={"autocomplete": "email"}),
        }

    def clean_email(self):
        """Check the model's constraints here, so that the message stands beside the field."""
        email = self.cleaned_data["email"]
        for constraint in Customer._meta.constraints:
            constraint.validate(Customer, Customer(email=email))
        return email


class CustomerFileForm(forms.Form):
    file = forms.FileField(label=_("Customers (CSV: name, email)"))

    def clean_file(self):
        """The text of the file."""
        try:
            text = self.cleaned_data["file"].read().decode()
        except UnicodeDecodeError:
            raise forms.ValidationError(_("This is no text in UTF-8.")) from None
        if not {"name", "email"} <= set(csv.DictReader(text.splitlines()).fieldnames or ()):
            raise forms.ValidationError(_("Its first line has to name the columns: name, email."))
        return text
