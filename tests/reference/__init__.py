"""The pages of docs/reference, made from the code: what they say can only be wrong where the code is.

python -m tests.reference     writes them; `tests/unit/test_reference.py` holds that they are current

    rest       routes of coordinator and nodes, from their OpenAPI documents
    commands   from the command's own parser
    settings   from the models
    metrics    from the registries of all processes
    errors     problem types, from the classes and calls that raise them
    sql        statements, functions and limits, from the tables of the parser
    writing    Markdown

Each of them has `page() -> str`.
"""
