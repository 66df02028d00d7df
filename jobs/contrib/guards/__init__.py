"""The current state of rows, which no other transaction can change until this one ends: `guard()`."""

PUBLIC = {"guard": "guards"}
