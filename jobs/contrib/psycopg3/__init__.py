"""PostgreSQL over psycopg 3: statements are prepared on the server, and the COMMIT is sent with the last one."""
