"""The page docs/performance.md and its plots, made from `benchmarks/results`.

python -m benchmarks.report     writes them; `tests/unit/test_performance_page.py` holds that they are current

    history   how some kept figures moved: kept in `history.json`, which learns from git what it lacks
    plots     what is drawn, and SVG of it
    page      the Markdown

Whoever keeps a result (`Result.save`) runs it before the commit.
"""
