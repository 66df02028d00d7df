from tests.celery_suite import main

main()
