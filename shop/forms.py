from django import forms

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
        """Ask the model's constraints already here, so that the message stands beside the field."""
        email = self.cleaned_data["email"]
        for constraint in Customer._meta.constraints:
            constraint.validate(Customer, Customer(email=email))
        return email
