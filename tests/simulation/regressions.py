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
    (
        "what was read of a topic made anew came into a timestamp of the old one",
        Plan(
            36,
            frozenset(["recreate"]),
            (
                ("node", 3007501502421724527),
                ("lead", 1655707749539433613),
                ("node", 4222975939672799206),
                ("write", 6642137152538371426),
                ("recreate", 1961289732717945003),
                ("node", 6208940686477001309),
                ("lead", 6637963400338017608),
                ("scan", 1716872342167419494),
                ("poll", 1514908528414860868),
                ("node", 3792356449584534445),
                ("lead", 4322241357305015099),
                ("write", 8768557813645255032),
                ("write", 1258086843257241474),
                ("lead", 5812984628994059796),
                ("poll", 6822948667174018276),
                ("tick", 973442754666433263),
                ("tick", 4613746585885142726),
                ("tick", 6577998671344047879),
                ("recreate", 5387510309382498979),
                ("poll", 6866402436045592475),
                ("lead", 201979256253254062),
                ("lead", 6550268414413242287),
            ),
            real_pipeline=False,
            replicas=False,
            restart_at_end=False,
        ),
    ),
    (
        "a build had read lost records, and its driver said so when the election was found harmless",
        Plan(
            12267,
            frozenset(["truncate"]),
            (
                ("build", 6829254412049092813),
                ("lead", 1377952769820159637),
                ("write", 6358849544112306166),
                ("write", 4236754260233715237),
                ("write", 3715584382684525503),
                ("lead", 5551233957414049627),
                ("write", 5536463291752022512),
                ("write", 8818850772030092731),
                ("driver", 7273021380097050590),
                ("driver", 4644283095703589358),
                ("driver", 4294790522977462075),
                ("truncate", 5884290697660206058),
                ("write", 4787346794467238036),
                ("write", 338438449591605861),
                ("write", 1991008075783391938),
                ("write", 5662954994133457791),
            ),
            real_pipeline=False,
            replicas=False,
            restart_at_end=False,
        ),
    ),
    (
        "a reader stood amid what was lost, and met markers of the new log in its place",
        Plan(
            12732,
            frozenset(["truncate"]),
            (
                ("write", 7626980114983851624),
                ("write", 577053776512807914),
                ("write", 6975143037285987668),
                ("scan", 8327495533139889123),
                ("node", 8222662849515916562),
                ("poll", 1027048136517208906),
                ("truncate", 7438810813850248416),
                ("write", 4170444543353190290),
                ("write", 7182862444799297268),
                ("poll", 7194722344060023669),
                ("lead", 3948290319198565599),
                ("tick", 8500656736693876518),
                ("lead", 7170670137895066537),
            ),
            real_pipeline=False,
            replicas=False,
            restart_at_end=False,
        ),
    ),
    (
        "a partition was taken over again while the first commit of a topic made anew was under way: its "
        "answer passed for one to a commit of the second, and reading began at the end",
        Plan(
            40808,
            frozenset(["recreate"]),
            (
                ("node", 4748729584624419407),
                ("recreate", 2035484710784478300),
                ("lead", 6130763950725000184),
                ("node", 1050344980702813622),
                ("lead", 2383030588331669328),
                ("lead", 817636273197418948),
                ("tick", 8603270079060815053),
                ("lead", 3746800529612942823),
            ),
            real_pipeline=False,
            replicas=False,
            restart_at_end=False,
        ),
    ),
]
