"""Plans that failed once, with what was wrong then. Every one is replayed by the tests.

When `plan` changes, a seed means another history: so they are kept in full, shrunk, each step with its
chance.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.chance import Plan

REGRESSIONS: Final[list[tuple[str, Plan]]] = [
    (
        "records that only a build waits for are lost",
        Plan(
            50,
            frozenset(["truncate"]),
            (
                ("build", 4176502057812890388),
                ("write", 3216405949777765532),
                ("write", 4208352747479309867),
                ("write", 4824457913997133338),
                ("write", 8441054143700630518),
                ("write", 8518665425411901847),
                ("lead", 4474532221862153094),
                ("truncate", 5292615352665519727),
            ),
            real_pipeline=False,
            replicas=False,
            restart_at_end=False,
        ),
    ),
    (
        "lost records were reported, and whoever reads on began below them",
        Plan(
            22,
            frozenset(["truncate"]),
            (
                ("write", 201313517115743890),
                ("write", 6331545480320294925),
                ("write", 7611285601507115079),
                ("write", 4655786022174886277),
                ("poll", 8386853679000917164),
                ("write", 3799792578969382678),
                ("truncate", 1045194826307070892),
                ("write", 1425643746485541029),
                ("lead", 4180679203422780811),
                ("node", 7178404987954882235),
                ("write", 5865067825098523230),
            ),
            real_pipeline=False,
            replicas=False,
            restart_at_end=False,
        ),
    ),
    (
        "lost records were sent, and neither committed nor reported",
        Plan(
            37,
            frozenset(["slow", "truncate"]),
            (
                ("write", 5991008193704243130),
                ("write", 5058708522081045883),
                ("write", 5663802818322790415),
                ("write", 4892251454710808059),
                ("poll", 4596509500673686710),
                ("truncate", 7344292443663054932),
                ("write", 7288545670323599683),
            ),
            real_pipeline=False,
            replicas=False,
            restart_at_end=False,
        ),
    ),
]
