"""The tests, from the fastest to the most real.

`unit/` single functions; `property/` generated input against a naive model; `simulation/` the pure cores in a
scheduled world with faults; `integration/` the real broker, stores, processes and Spark; `browser/` the web
page in a real browser.

Rules: no fixed sleeps (wait for a condition, with a limit), no test that cannot fail, no skipped test in CI
(`KEYTIDE_NO_SKIPS=1` fails the run), every folder under pytest's `tmp_path`, every process stopped by its
fixture.
"""
