"""What does a secret in an error text look like?

The rule: a shape is data. `RULES` has one row per shape, each with substrings ("stems") without which the row
cannot match, so that harmless text costs a few substring searches, and with a check where a pattern alone
cannot tell a secret from a word, a type or a number. Every pattern is written to be linear: a run of
characters is entered at one place only and left without backtracking.

Rows stand in the order in which they name what several of them find. `SEED_RULES` apply besides in the mode `"text"`
only. Where a pattern needs the end of a secret, `CUT` will do as well: it stands where a long text was cut.

This module does not know what becomes of a finding, which rows are switched off, or what a user has added
(`redact.py` does), and it cannot know a secret that looks like an ordinary word in an ordinary sentence.
"""

import base64
import binascii
import re
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

CUT: Final = "\x1c"  # white space for every pattern, so that no value goes beyond it


class Rule(NamedTuple):
    """One shape of secret. The group `s` of the pattern is what is replaced."""

    kind: str
    # One of them is in the text, or the rule is not tried. None: digits, and then what it finds stands on one line.
    stems: tuple[str, ...]
    pattern: str
    check: Callable[[re.Match[str]], bool] | None = None
    yields: bool = False  # gives way where an earlier row found something: `pw@host.example` is no address
    # What stands on the line of the stem besides, where looking for stems alone would cost too much: a digit, a run of
    # 14 letters, digits, "_" and "-" that is not hexadecimal, a flag of a command, a slash, letters beyond ASCII. Such
    # stems with capitals mean this case only.
    needs: Literal["", "digits", "run", "flag", "path", "other letters"] = ""
    also: tuple[
        str, ...
    ] = ()  # one of them is somewhere in the text as well, in lower case and with 0 for each digit
    # At most so many characters before a stem the pattern begins to match, so that it is tried only there; None: it is
    # tried everywhere.
    reach: int | None = None


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
    "authentication validation parameter value both missing required empty changed reset provided supplied "
    # the same in German, French, Spanish, Portuguese and Italian
    "ist sind wird wurde muss darf fehlt falsch ungültig erforderlich abgelaufen unbekannt leer nicht zu für "
    "est sont doit incorrect invalide requis obligatoire manquant expiré oublié inconnu vide "
    "es son debe incorrecta inválida obligatoria requerida caducada olvidada vacía errónea "
    "é são deve incorreta obrigatória expirada errata mancante scaduta obbligatoria non não"
)
_FIELD_NAMES = _words(
    "user username user_name login name email e-mail mail id key value token secret password passwd pwd role roles "
    "host port database db url account client_id api_key apikey session age phone address type scope created_at"
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
    value, prose = match["s"], (":" in match["sep"] or match["sep"] in {"->", "→"}) and not match["q"]
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
    password = not word.endswith(("secret", "key", "token"))
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


def _is_value(match: re.Match[str]) -> bool:
    """Whether a quoted text is a value and not a placeholder."""
    value = match["s"].strip()
    return (
        bool(value.strip("*.•x-"))
        and value.lower() not in _NOT_A_VALUE
        and not value.startswith(("${", "{{"))
    )


def _paired(match: re.Match[str]) -> bool:
    """`('password', 'x')` is a key with its value; `['password', 'username']` may be a list of fields."""
    value = match["s"]
    if not _is_value(match) or value.lower() in _FIELD_NAMES:
        return False
    return match["open"] != "[" or not re.fullmatch(r"[a-z_]+", value)


def _wrapped(match: re.Match[str]) -> bool:
    """`ApiKey(value='x')` and `Secret('x9')`, but not `InvalidToken('expired')`."""
    return _is_value(match) and (match["name"] is not None or _random(match["s"]))


def _command_flag(match: re.Match[str]) -> bool:
    return _is_value(match) and match["s"][0] not in "-$"


def _pgpass(match: re.Match[str]) -> bool:
    return not all(re.fullmatch(r"[0-9a-f]{1,4}", part, re.IGNORECASE) for part in match[0].split(":"))


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


def _named_phone(match: re.Match[str]) -> bool:
    """`phone: 5550100`, and without a colon nine digits that are not a time: `mobile 5552340199`."""
    if match["sep"].strip("\"' \t").startswith((":", "=")):
        return True
    written = match["s"]
    rest = match.string[match.end() : match.end() + 2]
    return (
        match["name"].lower() != "cell"
        and len(_digits(match)) >= 9
        and not re.match(r"\d{4}-\d\d-", written)
        and not re.match(r"\.\d", rest)
    )


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
_SEP = r"""(?:\\{0,3}["'`])?+\]?\s{0,3}(?P<sep>=>|:=|={1,2}|:|%3[DA]|(?<=\s)->(?=\s)|→)\s{0,3}"""
# Between a PHI word and its value: "MRN: 1", "mrn=1", "the MRN is 1".
_IS = r"""["']?\]?\s{0,3}(?:(?:is|was|no\.?|number)\s|[:=#]|\s){0,2}\s{0,2}["']?"""
_JOIN = r"[ _.\-]?"
# Between a code and its name: "PIN: 1234", "otp=1234", "the PIN is 1234", but not "PIN 1234".
_ASSIGNED = r"""["']?\]?\s{0,2}(?:[:=#]|=>|->|(?:is|was)\s)\s{0,2}["']?"""


def _keyed(
    kind: str, stems: str, key: str, check: Callable[[re.Match[str]], bool] = _assigned, reach: int = 0
) -> Rule:
    return Rule(kind, tuple(stems.split()), rf"(?P<key>{key}){_END}{_SEP}{_VALUE}", check, reach=reach)


# "Password" in German, French, Spanish, Portuguese, Dutch, Swedish, Danish, Norwegian, Finnish, Polish,
# Czech, Russian, Turkish, Chinese and Japanese.
_FOREIGN_STEMS = "passe passord passwort kennwort contrase parola senha wachtwoord adgangskode salasana heslo"
_OTHER_LETTERS = "lösenord|hasło|пароль|şifre|密码|密碼|パスワード"
_FOREIGN = (
    r"kennwort|mots?{_JOIN}de{_JOIN}passe|contrase(?:ñ|n\u0303|n)as?|senhas?|wachtwoord|adgangskode|passord"
    r"|passwort|salasana|heslo|parola"
).replace("{_JOIN}", _JOIN)
_WORDS = (  # kind, stems, words, and how far before its stem a word begins
    ("password", ("pass", "pwd"), r"pass(?:word|wd|phrase)|pwd", 0),
    ("password", tuple(_FOREIGN_STEMS.split()), _FOREIGN, 9),
    ("secret", ("secret", "key"), rf"secret|(?:api|access|private){_JOIN}key", 8),
    ("token", ("token",), r"(?:auth)?token", 4),
)


def _worded(
    pattern: str, check: Callable[[re.Match[str]], bool] | None = None, also: tuple[str, ...] = ()
) -> tuple[Rule, ...]:
    """One rule for each of the words, so that the marker names what was hidden."""
    is_first = pattern.removeprefix(_NEW).startswith("WORD")
    return tuple(
        Rule(
            kind,
            stems,
            pattern.replace("WORD", f"(?P<key>{key})"),
            check,
            also=also,
            reach=reach if is_first else None,
        )
        for kind, stems, key, reach in _WORDS
    )


# ('key', 'value'), ["key", "value"] and the same as bytes.
_PAIR = (
    r"""(?P<open>\(|(?:[\[(,]\s?)\[|\[)[bru]?(?P<kq>\\{0,3}["'])KEY(?P=kq),\s?[bru]?"""
    r"""(?P<q>\\{0,3}["'])(?P<s>(?:(?!(?P=q))[^\n])++)(?P=q),?[)\]]"""
)
# A quoted value without escapes, to its quote or the end of the line.
_QUOTED_VALUE = r"""(?P<q>\\{0,3}["'])(?P<s>(?:(?!(?P=q))[^\n])++)"""
_FLAG_VALUE = r"""(?P<q>["'])?+(?P<s>(?(q)(?:(?!(?P=q))[^\n])++|[^\s"']++))"""


_DATE = (
    r"\d{4}[\-/.]\d{1,2}[\-/.]\d{1,2}|\d{1,2}[\-/.]\d{1,2}[\-/.]\d{2,4}|(?:19|20)\d{6}"
    r"|\d{1,2}(?:st|nd|rd|th)?[ \-](?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6},?[ \-]\d{4}"
    r"|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4}"
)
_NAME = r"[^\W\d_a-z][\w'’.\-]*+"  # a capital first; the letters of every script
_NO_NAME = (
    r"(?!(?:Not|No|Unknown|None|Null|Invalid|Missing|Record|Service|Id|ID|Is|The|Error|Failed|Could|Must)\b)"
)
# What follows "Patient" at the beginning of a sentence or in a title, and is no name.
_NO_NAME_IN_TITLE = (
    r"(?!(?:Not|No|Unknown|None|Null|Invalid|Missing|Records?|Service|Services|Id|ID|IDs|Is|The|Error|Failed|Could"
    r"|Must|Portal|Data|Index|Access|Chart|Intake|Registry|Registration|Summary|Resource|Bundle|Identifier|Number|Name"
    r"|Names|List|Import|Export|Sync|Update|Updates|Search|Lookup|Match|Matching|Merge|API|Event|Events|Message|Messages"
    r"|Queue|Topic|Admission|Discharge|Transfer|Visit|Demographics|Master|Management|Monitoring|Safety|Care|Consent"
    r"|Everything|Profile|Document|Documents|History|Information|Info|Details|View|Form|Page|App|Application|Gateway"
    r"|Server|Client|Database|Table|Schema|Validation|Handler|Consumer|Worker|Job|Request|Response|Exception|Found"
    r"|Created|Updated|Deleted|Merged|Scheduling|Appointment|Appointments|Billing|Store|Cache|Feed|Stream|Group|Type"
    r"|Class|Model|Object|Entity|Key|Was|Has|Already|Cannot|Does|Did|And|Or|Of|In|On|At|For|With)\b)"
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

_B64 = r"[A-Za-z0-9+/=]"
_EOL = r"(?:\r?\n|\\r\\n|\\n)"
# The last lines of a PEM key. The run of lines is entered at its first line only: before it there is no other one.
_KEY_END = (
    rf"(?<!{_B64})(?<!{_B64}{{16}}\n)(?<!{_B64}{{16}}\r\n)(?<!{_B64}{{16}}\\)(?<!{_B64}{{16}}\\r\\)"
    rf"(?P<s>(?:(?:{_B64}{{16,}}+{_EOL})++(?:{_B64}{{1,15}}+{_EOL})?+|(?<![\s\S]){_B64}{{1,15}}+{_EOL})"
    r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?(?:-----)?)"
)


def _wrapped_rules() -> tuple[Rule, ...]:
    """Values in an object whose class says what they are: `ApiKey(value='x')`, `Secret { raw: "x" }`."""
    opening = (
        r"\s?[(\[{]\s?(?P<name>(?:value|val|raw|plain|text|data|secret|key|token|password|_\w{1,20})\s?[=:]\s?)?+"
        r"[bru]?"
    )
    names = (
        ("password", ("pass",), "Password|Passphrase|Passwd"),
        ("api-key", ("key",), "ApiKey|APIKey|AccessKey|AccountKey"),
        ("private-key", ("key",), "PrivateKey|SigningKey|EncryptionKey"),
        ("secret", ("secret",), "Secret|SecretStr|SecretBytes|SecretKey|SecretString|SecretValue"),
        ("token", ("token",), "(?:Access|Api|Auth|Bearer|Csrf|Id|Refresh|Session)Token"),
        ("credential", ("credential",), "Credentials?"),
    )
    return tuple(
        Rule(
            kind,
            stems,
            rf"(?-i:(?<![A-Za-z0-9])(?!Invalid|Missing|Wrong|Bad|Expired|Unknown|No[A-Z])"
            rf"(?:[A-Z][A-Za-z0-9]{{0,30}}?)?(?:{words}))(?:Value|String|Str)?"
            rf"{opening}{_QUOTED_VALUE}",
            _wrapped,
            also=("('", '("', "='", '="', ": '", ': "', " '", ' "', "(b"),
        )
        for kind, stems, words in names
    )


def _commands() -> tuple[Rule, ...]:
    """Passwords that programs take as an argument without saying so."""
    words = r"(?:\s(?!FLAG)[^\s|;&]{1,100}+){0,12}?"  # between the program and its password
    takes = (  # programs, their stems, and the flag that the password follows, with or without a blank
        (r"(?:mysql\w{0,12}|mariadb[\w\-]{0,12}|7za?)", ("mysql", "mariadb", "7z"), "-p", ""),
        (
            r"(?:sshpass|mongo\w{0,10}|rabbitmqadmin|(?:docker|podman|az) login|cypher-shell)",
            ("sshpass", "mongo", "rabbitmqadmin", " login ", "cypher-shell"),
            "-p",
            r"\s?",
        ),
        (r"(?:sqlcmd|bcp|osql|isql|tsql|zip|unzip)", ("sql", "bcp ", "zip "), "-P", r"\s?"),
        (r"redis-cli", ("redis-cli",), "-a", r"\s?"),
        (r"ldap\w{3,10}", ("ldap",), "-w", r"\s?"),
    )
    rules = [
        Rule(
            "password",
            stems,
            rf"(?<![\w.\-]){programs}{words.replace('FLAG', f'(?-i:{flag})')}\s(?-i:{flag}){blank}{_FLAG_VALUE}",
            _command_flag,
            needs="flag",
            reach=7,
        )
        for programs, stems, flag, blank in takes
    ]
    rules.append(
        Rule(
            "password",
            ("rabbitmqctl", "htpasswd"),
            rf"(?:rabbitmqctl(?:\s-[^\s]{{1,60}}){{0,4}}\s(?:add_user|change_password|authenticate_user)\s[^\s]{{1,80}}|htpasswd\s-\w*b\w*\s[^\s]{{1,200}}\s[^\s]{{1,80}})"
            rf"\s{_FLAG_VALUE}",
            _command_flag,
            reach=0,
        )
    )
    rules.append(
        Rule("password", ("pass:",), r"(?<![\w\-])-pass(?:in|out)?\s(?:\"|')?pass:(?P<s>[^\s\"']++)")
    )
    return tuple(rules)


def _token_shapes() -> tuple[Rule, ...]:
    """Tokens that are known by the way they look, most of them by how they begin."""
    prefixed = {
        "ghp_ gho_ ghs_ ghu_ ghr_": r"gh[opsur]_[A-Za-z0-9]{16,255}",
        "github_pat_": r"github_pat_\w{16,255}",
        "glpat- gldt- glrt- glptt- glcbt- glft- glsoat- glagent-": r"gl(?:pat|dt|rt|ptt|cbt|ft|soat|agent)-[\w\-]{16,}",
        "npm_": r"npm_[A-Za-z0-9]{30,}",
        "pypi-": r"pypi-AgE[\w\-]{16,}",
        "sk_ rk_ pk_": r"[srp]k_(?:live|test)_[A-Za-z0-9]{10,}",
        "whsec_": r"whsec_[A-Za-z0-9+/=]{16,}",
        "xox": r"xox[a-z]-[\w\-]{10,}",
        "xapp-": r"xapp-[\w\-]{10,}",
        "hf_": r"hf_[A-Za-z0-9]{30,}",
        "dop_v1_ doo_v1_ dor_v1_": r"do[opr]_v1_[a-f0-9]{32,}",
        "shp": r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}",
        "hvs. hvb.": r"hv[sb]\.[\w\-]{20,}",
        "rubygems_": r"rubygems_[a-f0-9]{32,}",
        "glsa_": r"glsa_[A-Za-z0-9]{20,}_[a-f0-9]{8}",
        "dckr_": r"dckr_(?:pat|oat)_[\w\-]{20,}",
        "dapi": r"dapi[a-f0-9]{32}(?:-\d)?",
        "xkeysib-": r"xkeysib-[a-f0-9]{32,}(?:-\w+)?",
        "sq0": r"sq0(?:atp|csp|idp)-[\w\-]{20,}",
        "lin_api_": r"lin_api_[A-Za-z0-9]{30,}",
        "figd_": r"figd_[\w\-]{30,}",
        "pmak-": r"PMAK-[a-f0-9]{20,}-[a-f0-9]{20,}",
        "nrak-": r"NRAK-[A-Z0-9]{20,}",
        "atatt3": r"ATATT3[\w\-=]{50,}",
        "ntn_ secret_": r"(?:ntn|secret)_[A-Za-z0-9]{40,}",
        "age-secret-key-": r"AGE-SECRET-KEY-1[A-Z0-9]{40,}",
        "pat-": r"pat-(?:na|eu)\d-[a-f0-9\-]{30,}",
        "sbp_": r"sbp_[a-f0-9]{40}",
        "ltai": r"LTAI[A-Za-z0-9]{16,24}",
        "eaac": r"EAAC[A-Za-z0-9]{40,}",
        "aiza": r"AIza[\w\-]{35}",
        "ya29.": r"ya29\.[\w\-]{20,}",
        "gocspx-": r"GOCSPX-[\w\-]{20,}",
        "sg.": r"SG\.[\w\-]{16,}\.[\w\-]{16,}",
        "1//0": r"1//0[\w\-]{30,}",
    }
    shapes = "|".join(prefixed.values())
    stems = tuple(" ".join(prefixed).split())
    # Addresses that accept posts of any client that knows them: what follows the host is the secret.
    webhooks = {
        "hooks.slack.com/services/": r"hooks\.slack\.com/services/(?P<s>[\w/]{20,}+)",
        "/webhooks/": r"discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/\d{5,25}/(?P<s>[\w\-]{20,}+)",
        "webhook.office.com/ outlook.office": r"(?:webhook\.office\.com/webhookb2"
        r"|outlook\.office(?:365)?\.com/webhook)/(?P<s>[\w@\-/]{30,}+)",
        "api.telegram.org/": r"api\.telegram\.org/(?:file/)?bot(?P<s>\d{5,12}:[\w\-]{30,}+)",
        "hooks.zapier.com/": r"hooks\.zapier\.com/hooks/catch/(?P<s>\w{4,}/\w{4,}+)",
        "maker.ifttt.com/": r"maker\.ifttt\.com/trigger/[\w\-]{1,60}/(?:json/)?with/key/(?P<s>[\w\-]{16,}+)",
    }
    return (
        Rule("token", stems, rf"(?<![A-Za-z0-9])(?P<s>(?-i:{shapes}))", needs="run", reach=0),
        Rule("token", ("sk-",), r"(?<![\w\-])(?P<s>(?-i:sk-[A-Za-z0-9_\-]{20,}+))", _mixed, needs="run"),
        *(Rule("token", tuple(hosts.split()), pattern, needs="path") for hosts, pattern in webhooks.items()),
        Rule("token", (":aa",), r"(?<![\w:])(?P<s>\d{8,10}:(?-i:AA)[\w\-]{32,34})(?![\w\-])", needs="run"),
        Rule("secret", ("q~",), r"(?<![\w~.\-])(?P<s>[\w~.\-]{3}(?-i:\dQ~)[\w~.\-]{31,34})(?![\w~\-])"),
        Rule(
            "token",
            ("SK", "AC"),
            r"(?<![A-Za-z0-9])(?P<s>(?-i:SK|AC)[0-9a-f]{32})(?![A-Za-z0-9])",
            needs="digits",
        ),
    )


# --- the table: what is looked for ---------------------------------------------------------------------

RULES: tuple[Rule, ...] = (
    Rule("private-key", ("private key",), r"(?P<s>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?(?:-----)?"
         r"(?:(?!-----END )[\s\S])*+(?:-----END [A-Z0-9 ]{0,60}+(?:-----)?)?)"),
    Rule("private-key", ("private key",), _KEY_END),
    Rule("private-key", ("b3blbnnzac1rzxktdje",), r"(?P<s>b3BlbnNzaC1rZXktdjE[A-Za-z0-9+/=\s]*+)", needs="run"),
    Rule("url-password", ("://",), r"""(?<=[A-Za-z0-9])://[^\s/:@"'<>\[\]]{0,200}+:(?!\d{1,5}"""
         r"""(?:[/?#,\s"']|$))"""
         rf"""(?P<s>(?:[^\s"'<>@:]|:(?!//))++(?:@[^\s"'<>@:/,]++(?=@))*+)[@{CUT}]""", reach=0),
    Rule("url-password", ("jdbc:oracle", "sqlplus", "expdp", "impdp", "sqlldr"),
         r"(?:jdbc:oracle:\w{2,5}:|(?:sqlplus|expdp|impdp|sqlldr)(?:\s-\w{1,10}){0,3}\s)[^\s/@\"']{1,60}/"
         rf"(?P<s>[^\s@\"']++)[@{CUT}]", needs="path", reach=0),
    Rule("url-password", ("://",), r"(?<=[A-Za-z0-9])://(?P<s>(?=[a-z_\-]{0,60}\d)[A-Za-z0-9_\-]{20,200})@",
         reach=0),
    Rule("authorization", ("authorization",), rf"(?:proxy-)?authorization{_SEP}(?P<q>\\{{0,3}}[\"'])?+"
         rf"(?P<scheme>"
         r"(?:bearer|basic|token|negotiate|ntlm|api-?key|sharedkey|sharedaccesssignature|digest|hawk|oauth"
         r"|aws4-hmac-sha256)\s+)?+(?P<s>(?<=digest )[^\r\n]++|(?<=hawk )[^\r\n]++|(?<=oauth )[^\r\n]++"
         r"|(?<=sha256 )[^\r\n]++|[^\s\"',;\\]++)", _header, reach=6),
    Rule("authorization", ("authorization",), _PAIR.replace("KEY", "(?:proxy-)?authorization"), _is_value,
         also=("',", '",')),
    Rule("cookie", ("cookie",), _PAIR.replace("KEY", "(?:set-)?cookie"), _is_value, also=("',", '",')),
    Rule("cookie", ("cookie",), r"(?<![A-Za-z])(?:set-)?cookies?(?:\\{0,3}[\"'])?+\s?:\s{0,3}"
         r"(?P<q>\\{0,3}[\"'])?+"
         r"(?P<s>(?=[\w.\-%]{1,80}=)(?(q)(?:(?!(?P=q))[^\r\n])++|[^\r\n]++))", reach=4),
    Rule("token", ("bearer",), rf"(?<![A-Za-z])bearer{_JOIN}(?:token)?[\s:=]{{1,3}}"
         rf"(?P<s>[\w\-.~+/]{{8,}}+=*+)", _bearer, reach=0),
    Rule("authorization", ("basic ",), r"(?<![\w.])basic (?P<s>[A-Za-z0-9+/]{6,}+={0,2}+)", _basic, reach=0),
    _keyed("password", "pass", rf"pass(?:word|wd|phrase)s?|(?<=[_.\-])pass|{_NEW}pass(?=\\*[\"']?\]?\s?="
           rf"|\\*[\"'])"),
    _keyed("password", "pwd", rf"{_NEW}pwd(?!=/)"),
    _keyed("password", _FOREIGN_STEMS, _FOREIGN, reach=9),
    Rule("password", tuple(_OTHER_LETTERS.split("|")), rf"(?P<key>{_OTHER_LETTERS}){_END}{_SEP}{_VALUE}", _assigned,
         needs="other letters", reach=0),
    *_commands(),
    Rule("password", ("machine ",), r"(?<![\w\-])machine\s{1,3}[^\s]{1,100}\s{1,3}login\s{1,3}"
         r"[^\s]{1,80}\s{1,3}password\s{1,3}(?P<s>[^\s]++)", reach=0),
    Rule("password", ("$",), r"(?P<s>\$(?:1|2[abxy]|5|6|7|y|apr1|argon2id?|pbkdf2[\w\-]{0,10}|scrypt)"
         r"(?:\$[\w./+,=\-]{1,200}){2,4})", reach=0),
    Rule("password", (":5432:", ":*:"), r"(?<![^\s\"'`])(?:\*|[\w.\-]{1,253}):(?:54\d\d|6432|\*):"
         r"(?:\*|[\w.\-]{1,63}):(?:\*|[\w.@\-]{0,62}[a-z][\w.@\-]{0,62}):(?P<s>[^\s\"'`]++)", _pgpass),
    _keyed("secret", "secret", rf"{_NEW}(?:client|app|shared|consumer)?secrets?(?:{_JOIN}"
           rf"(?:access)?{_JOIN}key)?", reach=8),
    _keyed("api-key", "key", rf"{_NEW}(?:(?:api|app|access|account|subscription|license){_JOIN}key"
           rf"|shared{_JOIN}access{_JOIN}key|functions{_JOIN}key)(?!{_JOIN}(?:id|name))", reach=14),
    _keyed("private-key", "key", rf"{_NEW}(?:private|encryption|signing|master|hmac"
           rf"|ssh){_JOIN}key(?!{_JOIN}(?:id|name))", reach=11),
    _keyed("signature", "sharedaccesssignature", r"sharedaccesssignature"),
    _keyed("token", "token", rf"(?:(?<=[_.\-])|(?-i:(?<=[a-z0-9])(?=T))|{_NEW}(?:access|refresh|id|auth"
           rf"|session|api|bot"
           rf"|csrf|xsrf){_JOIN})token", reach=8),
    _keyed("token", "token", r"(?<![A-Za-z])token", _assigned_weakly),
    _keyed("credential", "credential creds", rf"{_NEW}(?:credentials?|creds)", _assigned_weakly),
    _keyed("credential", "auth", rf"{_NEW}auth(?:{_JOIN}key)?", _auth),
    _keyed("session", "sess connect.sid", rf"{_NEW}(?:session{_JOIN}(?:id|key)|j?sessionid|phpsessid"
           rf"|connect\.sid)", _session, reach=3),
    *_worded(rf"(?<![\w\-])--(?:[a-z0-9]{{1,20}}-){{0,4}}WORD(?P<sep>:?)\s{{1,3}}(?!-){_VALUE}",
             lambda m: _assigned(m) and m["s"].lower() not in _PROSE, also=("--",)),
    Rule("password", (" -u ", "-user ", "-user="), r"(?<![\w\-])(?:-u |--(?:proxy-)?user[ =])(?P<q>[\"'])?+"
         r"(?:[^\s:\"']{1,80}+):(?!//)(?P<s>(?(q)(?:(?!(?P=q))[^\n])++|[^\s\"']++))", needs="flag"),
    *_worded(rf"{_NEW}WORD\s{{1,3}}(?:(?:is|was|of|used|value|by)\s{{1,3}})?+(?P<q>[\"'`])?+"
             r"(?P<s>(?(q)(?:(?!(?P=q))[^\n])++|[^\s\"',;)]++))", _spoken),
    *_worded(r"<(?:[\w.\-]{1,40}:)?(?:\w{0,20}?)WORD(?:\s[^<>]{0,200})?>"
             rf"(?P<s>[^<>\n{CUT}]++)(?:</|{CUT})", also=("</", CUT)),
    *_worded(_PAIR.replace("KEY", r"[\w.\-]{0,40}?WORD"), _paired, also=("',", '",')),
    *_worded(r"(?<![A-Za-z])(?:key|name|id|type)\s?=\s?\\{0,3}[\"'](?:[\w.:\-]{0,40}?)WORD[\w.:\-]{0,20}"
             r"\\{0,3}[\"'](?:\s{1,3}(?!value)[\w\-]{1,30}=\\{0,3}[\"'][^\"'<>]{0,60}[\"']){0,4}\s{1,3}value\s?=\s?"
             rf"{_QUOTED_VALUE}", _is_value, also=("value",)),
    *_worded(rf"name=\\{{0,3}}[\"']?(?:[\w.\-]{{0,40}}?)WORD\\{{0,3}}[\"']?"
             rf"(?:{_EOL}[A-Za-z\-]{{1,40}}:[^\r\n\\]{{0,200}}){{0,3}}{_EOL}{_EOL}"
             r"(?P<s>(?:[^\r\n\\]|\\(?![rn]))++)", also=("name=",)),
    *_worded(r"WORD%(?:25)?2[27](?:%(?:25)?20|\+){0,2}+%(?:25)?3A(?:%(?:25)?20|\+){0,2}+(?:%(?:25)?2[27])?+"
             r"(?P<s>(?:(?!%(?:25)?(?:2[27]|2C|7D))[^\s&\"'<>])++)", also=("%00",)),
    *_worded(rf"{_NEW}WORD\s(?:provided|supplied|given|received|used|sent)(?P<sep>\s?[:=]\s{{0,3}}){_VALUE}",
             _assigned, also=("provided", "supplied", "given", "received", "used", "sent")),
    *_wrapped_rules(),
    Rule("password", ("identified by",), r"identified by (?:values? )?(?P<q>[\"'])(?P<s>(?:(?!"
         r"(?P=q))[^\n])++)", reach=0),
    Rule("signature", ("sig=", "signature=", "sig%3d"), r"(?<![A-Za-z0-9])(?:x-\w{3,4}-signature|sig"
         r"|signature)(?:=|%3D)"
         r"(?P<s>[A-Za-z0-9%+/=_\-]{16,}+)", reach=7),
    Rule("jwt", ("eyj",), r"(?<![\w\-])(?P<s>(?-i:eyJ)[\w\-]{6,}+\.[\w\-]{4,}+(?:\.[\w\-]*+){0,3})", reach=0),
    Rule("aws-key", ("akia", "asia"), r"(?<![A-Za-z0-9])(?P<s>(?-i:A[KS]IA[A-Z0-9]{16}))(?![A-Za-z0-9])",
         needs="run"),
    *_token_shapes(),
    Rule("card", (), r"(?<![A-Za-z0-9])(?<!\d\.)(?=(?P<s>\d{13,19}|\d{4}(?P<c>[ \-.\u00a0])\d{4}"
         r"(?P=c)\d{4}(?P=c)\d{4}"
         r"|\d{4}(?P<d>[ \-])\d{6}(?P=d)\d{4,5})(?![A-Za-z0-9]))\d", _card),
    Rule("card", ("cvv", "cvc", "security"), rf"{_NEW}(?:cv[vc]2?|card{_JOIN}security{_JOIN}code)"
         rf"(?:{_JOIN}(?:code|number|no))?{_IS}(?P<s>\d{{3,4}})(?![\w.]\d|\w)", needs="digits", reach=5),
    Rule("passcode", ("pin", "otp", "code"), rf"{_NEW}(?:(?:t?otp|pin|passcode)"
         rf"(?:{_JOIN}(?:code|number|no))?|(?:verification|authentication|security|login|access|one{_JOIN}time"
         rf"|2fa|mfa|sms){_JOIN}(?:code|passcode|pin)){_ASSIGNED}(?P<s>\d{{4,10}}|\d{{3}}[ \-]\d{{3}})"
         r"(?![\w.\-]?\d|\w)", needs="digits", reach=20),
    Rule("passcode", ("otp", "code", "pin"), rf"{_NEW}(?:(?:verification|authentication|one{_JOIN}time|2fa|mfa){_JOIN}"
         r"(?:code|passcode|pin)|(?-i:OTP|TOTP)(?: code)?) (?P<s>\d{6,8}|\d{3}[ \-]\d{3})(?![\w.\-]?\d|\w)",
         needs="digits", reach=20),
    Rule("passport", ("passport",), rf"{_NEW}passport(?:{_JOIN}(?:number|num|no\.?|nr\.?|id))?{_IS}"
         r"(?P<s>(?=[a-z]{0,3}\d{5})[a-z0-9]{6,12})(?!\w)", needs="digits", reach=0),
    Rule("tax-id", ("ein", "tin", "tax", "employer"), rf"(?:{_NEW}(?:itin|tin|tax(?:payer)?{_JOIN}(?:id|identification)"
         rf"(?:{_JOIN}(?:number|num|no\.?))?|employer{_JOIN}identification{_JOIN}number)|(?-i:(?<![A-Za-z])EIN)"
         rf"|{_NEW}ein(?=[\"']?\s?[:=])){_IS}(?P<s>\d{{2}}-?\d{{7}}|9\d{{2}}-?\d{{2}}-?\d{{4}})(?![\w\-])",
         needs="digits", reach=1),
    Rule("driver-license", ("licen",), rf"{_NEW}(?:driver'?s?{_JOIN}|driving{_JOIN})licen[cs]e"
         rf"(?:{_JOIN}(?:number|num|no\.?|id))?{_IS}(?P<s>(?=[a-z]{{0,3}}\d{{4}})[a-z0-9\-]{{6,20}})(?!\w)",
         needs="digits", reach=9),
    Rule("iban", (), rf"(?<![A-Za-z0-9])(?P<s>(?-i:{_IBAN}))(?![A-Za-z0-9])", _iban),
    Rule("email", ("@", "%40"), r"(?<![\w.+\-])(?<!//)(?!(?:git|rabbit|hg)@)(?P<s>[\w.+\-]++(?:@"
         r"|%40)[a-z0-9\-]++"
         r"(?:\.[a-z0-9\-]++)*?\.[a-z]{2,24}+)(?![a-z0-9\-]|\.[a-z0-9])", yields=True),
    Rule("ssn", (), r"(?<![\w.\-])(?P<s>(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4})(?![\w\-])"),
    Rule("ssn", ("ssn", "social"), rf"(?:{_NEW}ssn|social{_JOIN}security(?:{_JOIN}(?:number|no|num))?){_IS}"
         r"(?P<s>(?!000|666|9)\d{3}[ \-]?(?!00)\d\d[ \-]?(?!0000)\d{4})(?![\w\-])", reach=0),
    Rule("mrn", ("mrn", "record", "patient"), rf"{_NEW}(?:mrn|medical{_JOIN}record(?:{_JOIN}(?:number|num"
         rf"|no|id))?"
         rf"|patient{_JOIN}(?:id|identifier|number|num|no)){_IS}"
         rf"(?P<s>[a-z]{{0,4}}[\-]?\d[\da-z\-]{{2,23}}+)", reach=8),
    Rule("birth-date", ("dob", "birth", "born", "d.o.b"), rf"{_NEW}(?:dob|d\.o\.b\.?"
         rf"|date{_JOIN}of{_JOIN}birth"
         rf"|birth{_JOIN}(?:date|day)|born(?: on)?){_IS}(?P<s>{_DATE})(?!\d)", reach=8),
    Rule("patient", ("patient",), rf"{_NEW}patient'?s?{_JOIN}(?:full|first|last|given|family"
         rf"|sur)?{_JOIN}name{_SEP}{_QUOTE}"
         rf"(?P<s>(?(q){_QUOTED}|(?-i:{_NO_NAME}{_NAME}(?:,? {_NAME}){{0,3}}|(?=[a-z])[^\s\"',;&)\]}}]++)))",
         lambda m: m["q"] is not None or m["s"].lower() not in _PROSE | _NOT_A_VALUE, reach=0),
    Rule("patient", ("patient",), rf"{_NEW}patient(?:\\{{0,3}}[\"'])?\s?[:=]\s{{0,3}}\\{{0,3}}[\"']?"
         rf"(?P<s>(?-i:{_NO_NAME}{_NAME}"
         rf"(?:,? {_NAME}){{1,3}}))", reach=0),
    Rule("patient", ("patient",), rf"(?<![A-Za-z])(?-i:patients? (?P<s>{_NO_NAME}{_NAME}"
         rf"(?: {_NAME}){{1,3}}))", reach=0),
    Rule("patient", ("patient",), rf"(?<![A-Za-z])(?-i:Patients? (?P<s>{_NO_NAME_IN_TITLE}{_NAME}"
         rf"(?: {_NO_NAME_IN_TITLE}{_NAME}){{1,3}}))", reach=0),
    Rule("nhs-number", ("nhs",), rf"{_NEW}nhs(?:{_JOIN}(?:number|num|no|id))?{_IS}"
         rf"(?P<s>\d{{3}}[ \-]?\d{{3}}[ \-]?\d{{4}})(?!\d)", _nhs, reach=0),
    Rule("insurance", ("insurance", "medica", "mbi", "health"), rf"{_NEW}(?:"
         rf"(?:health{_JOIN})?insurance"
         rf"(?:{_JOIN}(?:policy|member|card))?{_JOIN}(?:number|num|no|id)|health{_JOIN}plan{_JOIN}"
         rf"(?:number|num|no|id)"
         rf"|medicare(?:{_JOIN}(?:number|num|no|id))?|medicaid(?:{_JOIN}(?:number|num|no|id))?|mbi){_IS}"
         r"(?P<s>(?=[a-z\-]{0,5}\d)[a-z0-9][a-z0-9\-]{5,23}+)", reach=7),
    Rule("diagnosis", ("diagnos", "icd", "dx"), rf"{_NEW}(?:diagnos[ei]s(?:{_JOIN}codes?)?|icd-?(?:9|10"
         rf"|11)?(?:-?cm)?(?:{_JOIN}codes?)?|dx)"
         rf"{_IS}(?P<s>(?:[a-z]\d[0-9a-z](?:\.[0-9a-z]{{1,4}})?|\d{{3}}\.\d{{1,2}})"
         rf"(?:[,;] ?[a-z]\d[0-9a-z](?:\.[0-9a-z]{{1,4}})?)*+)(?!\w)", reach=0),
    Rule("phone", ("+",), r"(?<![\w+])(?P<s>\+[1-9](?:[ .\-()]{0,2}\d){7,14})(?![\d])", _phone, reach=0),
    Rule("phone", (), r"(?<![\w.\-])(?P<s>(?:1[ .\-])?(?:\([2-9]\d\d\) ?"
         r"|[2-9]\d\d[\-.])[2-9]\d\d[\-.]\d{4})(?![\w\-]|\.\d)"),
    Rule("phone", ("phone", "tel", "mobile", "cell", "fax"), rf"{_NEW}(?P<name>(?:tele|cell{_JOIN})?phone|tel|mobile"
         rf"|cell|fax)(?:{_JOIN}(?:number|num|no\.?))?(?P<sep>[\"']?\s?[:=]\s{{0,3}}|(?: is| was| at)?\s{{1,2}})[\"']?"
         r"(?P<s>[+(]?\d(?:[ .\-()/]{0,2}\d){6,14})(?!\w)", _named_phone, reach=5),
)  # fmt: skip

# What the mode "text" reacts to besides. A word counts where a value may follow it: "Unexpected token", "invalid
# password" and "author" stay as they are.
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
