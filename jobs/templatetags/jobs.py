"""``{% load jobs %}``: the tags and filters of extensions (their ``template_tags.py``)."""

from django import template

from jobs import extensions

register = template.Library()
for _module in extensions.modules("template_tags"):
    register.tags |= _module.register.tags
    register.filters |= _module.register.filters
