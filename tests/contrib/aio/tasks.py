"""Bodies of the tests of async bodies. A worker that a test starts imports this file with the test's."""
