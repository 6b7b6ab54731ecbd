"""The product and its pages use the field's words, in plain American English."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOPS = ("common", "stage_writer", "delta_loader", "bootstrap")
PRODUCT = [path for top in TOPS for path in (ROOT / top).rglob("*.py")]
PAGES = [
    *(ROOT / name for name in ("Makefile", "README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(ROOT / "docs").rglob("*.md"),
]
DEVELOPMENT = [
    *(
        path
        for top in ("tests", "model", "demo", "examples", "benchmarks", "devservices")
        for path in (ROOT / top).rglob("*.py")
    ),
    *(ROOT / "model").glob("*.tla"),
]
# A word that this project once used, and its replacement.
WORDS = {
    r"mend(s|ed|ing)?": "fix, repair",
    r"anew": "again, new",
    r"for ever": "forever, until stopped",
    r"_?(no|some|any)body(_\w+)?": "the noun: the operator, another process, the caller",
    r"besides": "also",
    r"_?beside": "next to, together with, in the background",
    r"all the same": "still, also",
    r"whatever": "any, every, regardless of",
    r"however long": "no matter how long",
    r"_?went_back|WentBack|LookBack": "rollback",
    r"_?side_(tables?|commits?)|(own_)?side tables?": "the secondary tables, next to the main one",
    r"_?let_go|_?see_to|_?spoken_of|_?is_a_no": "the field's own word",
    r"(?-i:(Finds|Follows|Converts|Decodes|Runs|Reads|Sends|Starts|Fetches|Checks|Opens)[A-Z]\w+)": (
        "a noun for a type, an imperative for a callable"
    ),
    r"(?-i:(Version|Offset)Story|OwnPast|Surroundings|Keeping|Moments)": "the field's own word",
    r"way_of_loading": "load mode",
    r"debts?": "deferred range",
    r"(?-i:(Table|Kafka)Look(er)?|Looked|LooksAt\w+)": "…Snapshot, or what is refreshed, inspected, checked",
    r"_?is_heard|LastWord": "connected; the client's last error",
    r"sources?: (\w+\[)?TopicPartition": "partition: a source is a system, or a node of a topology",
    r"(?-i:CommitPiece|Crew|DeliveryPlace|Evolver|FoundColumns|FoundReader)": "the field's own word",
    r"(?-i:Gathering|GivenUp|KafkaSaid|LeftOut|OffsetPlace|Originals)": "the field's own word",
    r"(?-i:OwnerBook|PieceReport|RouteBook|SeenBuckets|SeenGrant|SeenPartition)": "the field's own word",
    r"(?-i:SeenTime|Shaper|StoreUnfitError|StreamTurn|TakenError|TakenMessages)": "the field's own word",
    r"\w*(colour|honour|favour|behaviour|neighbour|(normal|recogn|organ|serial|initial)is[ei])\w*|modelled|misspelt"
    r"|catalogues?|afterwards|(up|down)wards": "the American spelling",
    r"(?-i:Uncuttable|UnreadMarkers|UnreadTopics)": "the field's own word",
}


@pytest.mark.parametrize(
    "path",
    [pytest.param(PRODUCT, id="product"), pytest.param(PAGES, id="pages"), pytest.param(DEVELOPMENT, id="development")],
)
def test_private_words_stay_out(path: list[Path]) -> None:
    words = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
    violations = [
        f"{file.relative_to(ROOT)}:{number}: {match[0]}"
        for file in path
        if file != Path(__file__)
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        for match in words.finditer(line)
    ]
    assert violations == [], f"write instead: {WORDS}"
