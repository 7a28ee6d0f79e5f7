"""The admin API and the web page.

Imports `views` for what is shown and asks `process.service` for what is done. Imported by
`coordinator.__main__` only.
"""
