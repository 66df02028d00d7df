from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from jobs.models import Job
from shop.forms import CustomerFileForm, SignUpForm
from shop.models import Customer, CustomerFile
from shop.services import hand_in, sign_up


@require_http_methods(["GET", "HEAD", "POST"])
def sign_up_view(request: HttpRequest) -> HttpResponse:
    form = SignUpForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        try:
            return redirect(sign_up(form.save(commit=False)))
        except IntegrityError:
            # Somebody took the e-mail address after the form was validated. A second validation sees that.
            form.full_clean()
            if form.is_valid():
                raise
    return render(request, "shop/sign_up.html", {"form": form})


@require_safe
@never_cache
def customer_view(request: HttpRequest, public_id: str) -> HttpResponse:
    customer = get_object_or_404(Customer, public_id=public_id)
    # There may be none: ended jobs are pruned after some days.
    job = Job.objects.filter(pk=customer.welcome_job).first()
    return render(request, "shop/customer.html", {"customer": customer, "job": job})


# In a real shop only the staff may do this.
@require_http_methods(["GET", "HEAD", "POST"])
def hand_in_view(request: HttpRequest) -> HttpResponse:
    form = CustomerFileForm(request.POST, request.FILES) if request.method == "POST" else CustomerFileForm()
    if form.is_valid():
        return redirect(hand_in(form.cleaned_data["file"]))
    return render(request, "shop/hand_in.html", {"form": form})


@require_safe
@never_cache
def customer_file_view(request: HttpRequest, public_id: str) -> HttpResponse:
    return render(request, "shop/customer_file.html", {"file": get_object_or_404(CustomerFile, public_id=public_id)})
