"""What does a secret in an error text look like?

The rule: a shape is data. `RULES` has one row per shape, each with substrings ("stems") without which the row
cannot match, so that harmless text costs a few substring searches, and with a check where a pattern alone
cannot tell a secret from a word, a type or a number. Every pattern is written to be linear: a run of
characters is entered at one place only and left without backtracking.

Rows stand in the order in which they name what several of them find. `SEED_RULES` are what seed 003 blanks
besides, in the mode `"whole"` only.

This module does not know what becomes of a finding, which rows are switched off, or what a user has added
(`redact.py` does), and it cannot know a secret that looks like an ordinary word in an ordinary sentence.
"""

import base64
import binascii
import re
from collections.abc import Callable
from typing import NamedTuple


class Rule(NamedTuple):
    """One shape of secret. The group `s` of the pattern is what is replaced."""

    kind: str
    # One of them is in the text, or the rule is not tried; with capitals they mean this case only. None: digits, and
    # then what it finds stands on one line.
    stems: tuple[str, ...]
    pattern: str
    check: Callable[[re.Match[str]], bool] | None = None
    yields: bool = False  # gives way where an earlier row found something: `pw@host.example` is no address


# --- is it really one? ---------------------------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NOT_A_VALUE = _words(
    "none null nil undefined true false yes no on off empty redacted filtered hidden masked removed "
    "str string bytes int bool optional any object secretstr varchar text missing required default %s "
    "%r {} () ... ?"
)
_PROSE = _words(
    "a an the is was are must should may can cannot could has have had not no expected got given "
    "found failed failure fails invalid incorrect wrong bad expired rejected refused denied unknown "
    "unsupported unauthorized too at in on for from to of with by and or but if when does do did it "
    "this that your you please use enter field length mismatch error check only access permission "
    "authentication validation parameter value both"
)
_CODE_ROOTS = ("self.", "cls.", "this.", "settings.", "config.", "os.", "env.", "args.", "request.", "ctx.")
_CALL = re.compile(r"[a-z_][a-z_.]*[(\\[]")
_PARSER_WORDS = ("unexpected", "illegal", "unrecognized", "unrecognised", "next", "expected", "near")
_OFFSET_WORDS = ("offset", "timestamp", "partition", "lsn", "seq", "sequence")


def _before(match: re.Match[str]) -> str:
    """The word that stands in front of the match, in lower case."""
    words = re.findall(r"[a-z]+", match.string[max(0, match.start() - 16) : match.start()].lower())
    return words[-1] if words else ""


def _random(value: str, least: int = 6) -> bool:
    """Whether nobody would write this as a word: letters with digits, or a long mixture of cases."""
    letters = any(c.isalpha() for c in value)
    mixed = len(value) >= 20 and value != value.lower() and value != value.upper()
    return len(value) >= least and letters and (mixed or any(c.isdigit() for c in value))


def _assigned(match: re.Match[str]) -> bool:
    """Whether what follows `password=` or `password:` is a value and not a word, a type or a line of code."""
    value, prose = match["s"], ":" in match["sep"] and not match["q"]
    word = value.lower().rstrip(".!?:").strip("{}<>[]") or value.lower()
    if word in _NOT_A_VALUE or not value.strip("*.•x-") or value.startswith(("${", "$(", "{{", "%(")):
        return False
    if match["q"]:
        return True
    if prose and (word in _PROSE or value in {"/", "|", ">", "-", "\\"}):
        return False
    name = match["key"].lower()
    spaced = match.string[match.start("sep") - 1] == " "
    code = value.startswith(_CODE_ROOTS) or value.endswith(("(", "()")) or (spaced and _CALL.match(value))
    return not code and word.strip("_") != name and not (value.startswith("{") and match["sep"] != "=")


def _assigned_weakly(match: re.Match[str]) -> bool:
    """The same for keys that are everyday words: `token: abc` may be a parser talking."""
    if not _assigned(match) or _before(match) in _PARSER_WORDS:
        return False
    return bool(match["q"]) or ":" not in match["sep"] or _random(match["s"])


def _session(match: re.Match[str]) -> bool:
    """A login session is long and random; `session_id=order-17` is how a Service Bus session is named."""
    return _assigned(match) and _random(match["s"], 16)


def _auth(match: re.Match[str]) -> bool:
    return _assigned_weakly(match) and (_random(match["s"]) or len(match["s"]) >= 12)


_ALGORITHM = re.compile(r"(?:sha|md|bcrypt|argon|pbkdf|utf|base|oauth|v)[\d.]*[a-z]{0,3}\W?", re.IGNORECASE)


def _spoken(match: re.Match[str]) -> bool:
    """`password hunter2`, `password is 'swordfish'`, but not `password sha256 mismatch` or `secret db-2`."""
    value, word = match["s"], match["key"].lower()
    password = word[0] == "p" and not word.endswith("key")
    if match["q"]:
        return password and len(value) >= 4
    return _loosely_spoken(match) and (password or len(value) >= 16) and word != "secret"


def _loosely_spoken(match: re.Match[str]) -> bool:
    return (
        _before(match) not in _PARSER_WORDS and _random(match["s"]) and not _ALGORITHM.fullmatch(match["s"])
    )


def _header(match: re.Match[str]) -> bool:
    return (bool(match["scheme"]) and match["s"].strip(".*") != "") or _random(match["s"], 12)


def _bearer(match: re.Match[str]) -> bool:
    return _random(match["s"], 8)


def _basic(match: re.Match[str]) -> bool:
    try:
        return b":" in base64.b64decode(match["s"] + "=" * (-len(match["s"]) % 4), validate=True)
    except binascii.Error:
        return False


def _mixed(match: re.Match[str]) -> bool:
    """Upper case, lower case and digits together, as in a generated token."""
    value = match["s"]
    return value != value.lower() and value != value.upper() and any(c.isdigit() for c in value)


def _digits(match: re.Match[str]) -> list[int]:
    return [int(c) for c in match["s"] if c in "0123456789"]


_ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    r"|3(?:0[0-5]|[68]\d)\d{11}|35(?:2[89]|[3-8]\d)\d{12}|6(?:011|4[4-9]\d|5\d\d|2\d\d)\d{12,15}"
    r"|(?:5018|5020|5038|5893|6304|6759|676[1-3])\d{9,15}"
)


def _card(match: re.Match[str]) -> bool:
    digits = _digits(match)
    if _before(match) in _OFFSET_WORDS or not _ISSUERS.fullmatch("".join(map(str, digits))):
        return False
    doubled = (d * 2 - 9 * (d > 4) for d in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0 and len(set(digits)) > 1


def _iban(match: re.Match[str]) -> bool:
    flat = re.sub(r"[ \-]", "", match["s"])
    return int("".join(str(int(c, 36)) for c in flat[4:] + flat[:4])) % 97 == 1


def _nhs(match: re.Match[str]) -> bool:
    digits = _digits(match)
    return -sum(d * (10 - i) for i, d in enumerate(digits[:9])) % 11 == digits[9]


def _phone(match: re.Match[str]) -> bool:
    written = match["s"][1:]
    if re.fullmatch(r"\d+\.\d+", written):  # a decimal number with its sign
        return False
    return (10 if written.isdigit() else 8) <= len(_digits(match)) <= 15


# --- building blocks -----------------------------------------------------------------------------------

_NEW = r"(?:(?<![A-Za-z])|(?-i:(?<=[a-z0-9])(?=[A-Z])))"  # a word begins, also inside camelCase and a_b
_END = r"(?:[_.\-]?(?:\d{1,3}|value|hash|plain|raw|old|new|current|confirm(?:ation)?|prod|dev|test))?+"
_QUOTE = r"""(?:[bruf]{0,2}(?P<q>\\{0,3}["'`]))?+"""
# To its own end quote or the end of the line. What opens with ", " stood behind a quote: 'Password: ', x
_QUOTED = r"""(?!, |\) )(?:(?!(?P=q))(?:\\{3}["']|\\[^\n]|[^\n\\]))++"""
_BARE = (
    r"""(?:\{[^{}\n]*+\}|(?![\[{(])(?:[^\s"'`,;&)\]}<>\\]|\\(?!["'])|[,;](?!\s|$|[\w.\-]{1,40}\s?[=:])"""
    r"""|[)\]}](?![\s,;.:)\]}"'`]|$)|["'](?=\w))++)"""
)
_VALUE = rf"{_QUOTE}(?P<s>(?(q){_QUOTED}|{_BARE}))"
_SEP = r"""(?:\\{0,3}["'`])?+\]?\s{0,3}(?P<sep>=>|:=|={1,2}|:|%3[DA])\s{0,3}"""
# Between a PHI word and its value: "MRN: 1", "mrn=1", "the MRN is 1".
_IS = r"""["']?\]?\s{0,3}(?:(?:is|was|no\.?|number)\s|[:=#]|\s){0,2}\s{0,2}["']?"""
_JOIN = r"[ _.\-]?"


def _keyed(kind: str, stems: str, key: str, check: Callable[[re.Match[str]], bool] = _assigned) -> Rule:
    return Rule(kind, tuple(stems.split()), rf"(?P<key>{key}){_END}{_SEP}{_VALUE}", check)


_WORDS = (
    ("password", ("pass", "pwd"), r"pass(?:word|wd|phrase)|pwd"),
    ("secret", ("secret", "key"), rf"secret|(?:api|access|private){_JOIN}key"),
    ("token", ("token",), r"(?:auth)?token"),
)


def _worded(pattern: str, check: Callable[[re.Match[str]], bool] | None = None) -> tuple[Rule, ...]:
    """One rule for each of the words, so that the marker names what was hidden."""
    return tuple(
        Rule(kind, stems, pattern.replace("WORD", f"(?P<key>{key})"), check) for kind, stems, key in _WORDS
    )


_DATE = (
    r"\d{4}[\-/.]\d{1,2}[\-/.]\d{1,2}|\d{1,2}[\-/.]\d{1,2}[\-/.]\d{2,4}|(?:19|20)\d{6}"
    r"|\d{1,2}(?:st|nd|rd|th)?[ \-](?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6},?[ \-]\d{4}"
    r"|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4}"
)
_NAME = r"[^\W\d_a-z][\w'’.\-]*+"  # a capital first; the letters of every script
_NO_NAME = (
    r"(?!(?:Not|No|Unknown|None|Null|Invalid|Missing|Record|Service|Id|ID|Is|The|Error|Failed|Could|Must)\b)"
)
_IBAN_LENGTHS = (
    "15NO 16BE 18DK 18FI 18FO 18GL 18NL 19MK 19SI 20AT 20BA 20EE 20KZ 20LT 20LU 20XK 21CH 21CR 21HR 21LI"
    " 21LV 22BG"
    " 22BH 22DE 22GB 22GE 22IE 22ME 22RS 23AE 23IL 24AD 24CZ 24ES 24MD 24PK 24RO 24SA 24SE 24SK 24TN 24VG"
    " 25PT 26IS"
    " 26TR 27FR 27GR 27IT 27MC 27SM 28AL 28AZ 28CY 28DO 28GT 28HU 28LB 28PL 29BR 29QA 29UA 30JO 30KW 30MU"
    " 31MT 32LC"
)
_IBAN = "|".join(rf"{c[2:]}\d\d(?:[ \-]?[A-Z0-9]){{{int(c[:2]) - 4}}}" for c in _IBAN_LENGTHS.split())

# --- the table: what is looked for ---------------------------------------------------------------------

RULES: tuple[Rule, ...] = (
    Rule("private-key", ("private key",), r"(?P<s>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?(?:-----)?"
         r"(?:(?!-----END )[\s\S])*+(?:-----END [A-Z0-9 ]{0,60}+(?:-----)?)?)"),
    Rule("private-key", ("b3blbnnzac1rzxktdje",), r"(?P<s>b3BlbnNzaC1rZXktdjE[A-Za-z0-9+/=\s]*+)"),
    Rule("url-password", ("://",), r"""(?<=[A-Za-z0-9])://[^\s/:@"'<>\[\]]{0,200}+:(?!\d{1,5}"""
         r"""(?:[/?#,\s"']|$))"""
         r"""(?P<s>(?:[^\s"'<>@:]|:(?!//))++(?:@[^\s"'<>@:/,]++(?=@))*+)@"""),
    Rule("url-password", ("://",), r"(?<=[A-Za-z0-9])://(?P<s>(?=[a-z_\-]{0,60}\d)[A-Za-z0-9_\-]{20,200})@"),
    Rule("authorization", ("authorization",), rf"(?:proxy-)?authorization{_SEP}(?P<q>\\{{0,3}}[\"'])?+"
         rf"(?P<scheme>"
         r"(?:bearer|basic|token|negotiate|ntlm|api-?key|sharedkey|sharedaccesssignature|digest|hawk|oauth"
         r"|aws4-hmac-sha256)\s+)?+(?P<s>(?<=digest )[^\r\n]++|(?<=hawk )[^\r\n]++|(?<=oauth )[^\r\n]++"
         r"|(?<=sha256 )[^\r\n]++|[^\s\"',;\\]++)", _header),
    Rule("cookie", ("cookie",), r"(?<![A-Za-z])(?:set-)?cookies?(?:\\{0,3}[\"'])?+\s?:\s{0,3}"
         r"(?P<q>\\{0,3}[\"'])?+"
         r"(?P<s>(?=[\w.\-%]{1,80}=)(?(q)(?:(?!(?P=q))[^\r\n])++|[^\r\n]++))"),
    Rule("token", ("bearer",), rf"(?<![A-Za-z])bearer{_JOIN}(?:token)?[\s:=]{{1,3}}"
         rf"(?P<s>[\w\-.~+/]{{8,}}+=*+)", _bearer),
    Rule("authorization", ("basic ",), r"(?<![\w.])basic (?P<s>[A-Za-z0-9+/]{6,}+={0,2}+)", _basic),
    _keyed("password", "pass", rf"pass(?:word|wd|phrase)s?|(?<=[_.\-])pass|{_NEW}pass(?=\\*[\"']?\]?\s?="
           rf"|\\*[\"'])"),
    _keyed("password", "pwd", rf"{_NEW}pwd(?!=/)"),
    _keyed("secret", "secret", rf"{_NEW}(?:client|app|shared|consumer)?secrets?(?:{_JOIN}"
           rf"(?:access)?{_JOIN}key)?"),
    _keyed("api-key", "key", rf"{_NEW}(?:(?:api|app|access|account|subscription|license){_JOIN}key"
           rf"|shared{_JOIN}access{_JOIN}key|functions{_JOIN}key)(?!{_JOIN}(?:id|name))"),
    _keyed("private-key", "key", rf"{_NEW}(?:private|encryption|signing|master|hmac"
           rf"|ssh){_JOIN}key(?!{_JOIN}(?:id|name))"),
    _keyed("signature", "sharedaccesssignature", r"sharedaccesssignature"),
    _keyed("token", "token", rf"(?:(?<=[_.\-])|(?-i:(?<=[a-z0-9])(?=T))|{_NEW}(?:access|refresh|id|auth"
           rf"|session|api|bot"
           rf"|csrf|xsrf){_JOIN})token"),
    _keyed("token", "token", r"(?<![A-Za-z])token", _assigned_weakly),
    _keyed("credential", "credential creds", rf"{_NEW}(?:credentials?|creds)", _assigned_weakly),
    _keyed("credential", "auth", rf"{_NEW}auth(?:{_JOIN}key)?", _auth),
    _keyed("session", "sess connect.sid", rf"{_NEW}(?:session{_JOIN}(?:id|key)|j?sessionid|phpsessid"
           rf"|connect\.sid)", _session),
    *_worded(rf"(?<![\w\-])--(?:[a-z0-9]{{1,20}}-){{0,4}}WORD(?P<sep>:?)\s{{1,3}}(?!-){_VALUE}",
             lambda m: _assigned(m) and m["s"].lower() not in _PROSE),
    Rule("password", ("-u ", "--user "), r"(?<![\w\-])(?:-u|--user) (?:[^\s:\"']{1,80}+):(?!//)"
         r"(?P<s>[^\s\"']++)"),
    *_worded(rf"{_NEW}WORD\s{{1,3}}(?:(?:is|was|of|used|value|by)\s{{1,3}})?+(?P<q>[\"'`])?+"
             r"(?P<s>(?(q)(?:(?!(?P=q))[^\n])++|[^\s\"',;)]++))", _spoken),
    *_worded(r"<(?:[\w.\-]{1,40}:)?(?:\w{0,20}?)WORD(?:\s[^<>]{0,200})?>(?P<s>[^<>\n]++)</"),
    Rule("password", ("identified by",), r"identified by (?:values? )?(?P<q>[\"'])(?P<s>(?:(?!"
         r"(?P=q))[^\n])++)"),
    Rule("signature", ("sig=", "signature=", "sig%3d"), r"(?<![A-Za-z0-9])(?:x-\w{3,4}-signature|sig"
         r"|signature)(?:=|%3D)"
         r"(?P<s>[A-Za-z0-9%+/=_\-]{16,}+)"),
    Rule("jwt", ("eyj",), r"(?<![\w\-])(?P<s>(?-i:eyJ)[\w\-]{6,}+\.[\w\-]{4,}+(?:\.[\w\-]*+){0,3})"),
    Rule("aws-key", ("akia", "asia"), r"(?<![A-Za-z0-9])(?P<s>(?-i:A[KS]IA[A-Z0-9]{16}))(?![A-Za-z0-9])"),
    Rule("token", ("ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "gldt-", "glrt-",
         "glptt-", "glcbt-", "glft-", "npm_", "pypi-", "sk_", "rk_", "pk_", "whsec_", "xox", "xapp-",
                "hf_", "dop_v1_", "shp", "hvs."),
         r"(?<![A-Za-z0-9])(?P<s>(?-i:gh[opsur]_[A-Za-z0-9]{16,255}|github_pat_\w{16,255}|gl(?:pat|dt|rt"
         r"|ptt|cbt|ft)-[\w\-]{16,}"
         r"|npm_[A-Za-z0-9]{30,}|pypi-AgE[\w\-]{16,}|[srp]k_(?:live|test)_[A-Za-z0-9]{10,}"
         r"|whsec_[A-Za-z0-9+/=]{16,}"
         r"|xox[a-z]-[\w\-]{10,}|xapp-[\w\-]{10,}|hf_[A-Za-z0-9]{30,}|dop_v1_[a-f0-9]{32,}|shp(?:at|ca|pa"
         r"|ss)_[A-Fa-f0-9]{32}"
         r"|hvs\.[\w\-]{20,}))"),
    Rule("token", ("sk-",), r"(?<![\w\-])(?P<s>(?-i:sk-[A-Za-z0-9_\-]{20,}+))", _mixed),
    Rule("token", ("aiza", "ya29.", "gocspx-", "sg.", "hooks.slack.com/services/"), r"(?<![A-Za-z0-9])"
         r"(?P<s>(?-i:AIza[\w\-]{35}"
         r"|ya29\.[\w\-]{20,}+|GOCSPX-[\w\-]{20,}+|SG\.[\w\-]{16,}+\.[\w\-]{16,}+"
         r"|(?<=hooks\.slack\.com/services/)[\w/]{20,}+))"),
    Rule("token", ("SK", "AC"), r"(?<![A-Za-z0-9])(?P<s>(?-i:SK|AC)[0-9a-f]{32})(?![A-Za-z0-9])"),
    Rule("card", (), r"(?<![A-Za-z0-9])(?<!\d\.)(?=(?P<s>\d{13,19}|\d{4}(?P<c>[ \-.\u00a0])\d{4}"
         r"(?P=c)\d{4}(?P=c)\d{4}"
         r"|\d{4}(?P<d>[ \-])\d{6}(?P=d)\d{4,5})(?![A-Za-z0-9]))\d", _card),
    Rule("iban", (), rf"(?<![A-Za-z0-9])(?P<s>(?-i:{_IBAN}))(?![A-Za-z0-9])", _iban),
    Rule("email", ("@", "%40"), r"(?<![\w.+\-])(?<!//)(?!(?:git|rabbit|hg)@)(?P<s>[\w.+\-]++(?:@"
         r"|%40)[a-z0-9\-]++"
         r"(?:\.[a-z0-9\-]++)*?\.[a-z]{2,24}+)(?![a-z0-9\-]|\.[a-z0-9])", yields=True),
    Rule("ssn", (), r"(?<![\w.\-])(?P<s>(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4})(?![\w\-])"),
    Rule("ssn", ("ssn", "social"), rf"(?:{_NEW}ssn|social{_JOIN}security(?:{_JOIN}(?:number|no|num))?){_IS}"
         r"(?P<s>(?!000|666|9)\d{3}[ \-]?(?!00)\d\d[ \-]?(?!0000)\d{4})(?![\w\-])"),
    Rule("mrn", ("mrn", "record", "patient"), rf"{_NEW}(?:mrn|medical{_JOIN}record(?:{_JOIN}(?:number|num"
         rf"|no|id))?"
         rf"|patient{_JOIN}(?:id|identifier|number|num|no)){_IS}"
         rf"(?P<s>[a-z]{{0,4}}[\-]?\d[\da-z\-]{{2,23}}+)"),
    Rule("birth-date", ("dob", "birth", "born", "d.o.b"), rf"{_NEW}(?:dob|d\.o\.b\.?"
         rf"|date{_JOIN}of{_JOIN}birth"
         rf"|birth{_JOIN}(?:date|day)|born(?: on)?){_IS}(?P<s>{_DATE})(?!\d)"),
    Rule("patient", ("patient",), rf"{_NEW}patient'?s?{_JOIN}(?:full|first|last|given|family"
         rf"|sur)?{_JOIN}name{_SEP}{_QUOTE}"
         rf"(?P<s>(?(q){_QUOTED}|(?-i:{_NO_NAME}{_NAME}(?:,? {_NAME}){{0,3}}|(?=[a-z])[^\s\"',;&)\]}}]++)))",
         lambda m: m["q"] is not None or m["s"].lower() not in _PROSE | _NOT_A_VALUE),
    Rule("patient", ("patient",), rf"{_NEW}patient(?:\\{{0,3}}[\"'])?\s?[:=]\s{{0,3}}\\{{0,3}}[\"']?"
         rf"(?P<s>(?-i:{_NO_NAME}{_NAME}"
         rf"(?:,? {_NAME}){{1,3}}))"),
    Rule("patient", ("patient",), rf"(?<![A-Za-z])(?-i:patients? (?P<s>{_NO_NAME}{_NAME}"
         rf"(?: {_NAME}){{1,2}}))"),
    Rule("nhs-number", ("nhs",), rf"{_NEW}nhs(?:{_JOIN}(?:number|num|no|id))?{_IS}"
         rf"(?P<s>\d{{3}}[ \-]?\d{{3}}[ \-]?\d{{4}})(?!\d)", _nhs),
    Rule("insurance", ("insurance", "medicare", "medicaid", "mbi", "health"), rf"{_NEW}(?:"
         rf"(?:health{_JOIN})?insurance"
         rf"(?:{_JOIN}(?:policy|member|card))?{_JOIN}(?:number|num|no|id)|health{_JOIN}plan{_JOIN}"
         rf"(?:number|num|no|id)"
         rf"|medicare(?:{_JOIN}(?:number|num|no|id))?|medicaid(?:{_JOIN}(?:number|num|no|id))?|mbi){_IS}"
         r"(?P<s>(?=[a-z\-]{0,5}\d)[a-z0-9][a-z0-9\-]{5,23}+)"),
    Rule("diagnosis", ("diagnos", "icd", "dx"), rf"{_NEW}(?:diagnos[ei]s(?:{_JOIN}codes?)?|icd-?(?:9|10"
         rf"|11)?(?:-?cm)?(?:{_JOIN}codes?)?|dx)"
         rf"{_IS}(?P<s>(?:[a-z]\d[0-9a-z](?:\.[0-9a-z]{{1,4}})?|\d{{3}}\.\d{{1,2}})"
         rf"(?:[,;] ?[a-z]\d[0-9a-z](?:\.[0-9a-z]{{1,4}})?)*+)(?!\w)"),
    Rule("phone", ("+",), r"(?<![\w+])(?P<s>\+[1-9](?:[ .\-()]{0,2}\d){7,14})(?![\d])", _phone),
    Rule("phone", (), r"(?<![\w.\-])(?P<s>(?:1[ .\-])?(?:\([2-9]\d\d\) ?"
         r"|[2-9]\d\d[\-.])[2-9]\d\d[\-.]\d{4})(?![\w\-]|\.\d)"),
    Rule("phone", ("phone", "tel", "mobile", "cell", "fax"), rf"{_NEW}(?:(?:tele)?phone(?:{_JOIN}(?:number"
         rf"|num|no))?|tel|mobile"
         r"(?:[ _\-]?(?:number|no))?|cell|fax)[\"']?\s?[:=]\s{0,3}[\"']?(?P<s>[+(]?\d"
         r"(?:[ .\-()/]{0,2}\d){6,14})(?!\w)"),
)  # fmt: skip

# What the seed blanks for the word alone. A word counts where a value may follow it: D4 wants "Unexpected
# token", "invalid password" and "author" left as they are.
SEED_RULES: tuple[Rule, ...] = (
    Rule("connection-url", ("://",), r"(?P<s>(?:postgres(?:ql)?|mongodb|mysql|redis|rediss|amqps?"
         r"|mongodb\+srv)(?:\+\w+)?://\S*)"),
    Rule("key-material", ("-----begin",), r"(?P<s>-----BEGIN)"),
    Rule("key-material", ("private_key",), r"(?P<s>private_key)(?!_id)"),
    _keyed("sensitive-word", "token credential bearer", r"(?<![A-Za-z_])(?:token|credentials?|bearer)",
           lambda m: _assigned(m) and _before(m) not in _PARSER_WORDS),
    Rule("sensitive-word", ("password", "secret", "token", "api_key", "bearer", "credential"),
         r"(?<![A-Za-z])(?:password|secret|token|api_key|bearer|credential)s?\s{1,3}"
         r"(?P<s>[^\s\"'`]++)", _loosely_spoken),
)  # fmt: skip

KINDS: tuple[str, ...] = tuple(dict.fromkeys(rule.kind for rule in RULES))
