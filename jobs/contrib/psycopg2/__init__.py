"""PostgreSQL over psycopg2, for projects that have not changed to psycopg 3 yet."""
