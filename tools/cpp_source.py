"""C++ sources as far as the tools read them: by braces, without a compiler."""
import re

# comments, texts and directives: their lines stay, what is in them goes
NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>\w*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<!\w)'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*", re.S | re.M)
TEMPLATE = re.compile(r"\s*template\s*<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>")
LABEL = re.compile(r"\s*(?:public|private|protected)\s*:(?!:)")
NAMESPACE = re.compile(r'\s*(?:inline\s+)?namespace\b|\s*extern\s+""\s*$')
TYPE = re.compile(r"\s*(?:typedef\s+|static\s+|constexpr\s+|const\s+)*(?:class|struct|union|enum(?:\s+class)?)\b"
                  r"(?P<name>(?:[^=:]|::)*)(?::(?P<bases>[^=]*))?$")
ASSIGNED = re.compile(r"[\w\]>]\s*=(?!=)")
LAMBDA = re.compile(r"=\s*\[")
NAME = re.compile(r"([\w:~]*operator\s*[^\s\w(]+|[\w:~]+)\s*(?:<[^()]*>)?\s*\(")


def without_texts(source):
    return NO_CODE.sub(lambda m: ('""' if m[0][0] in '"R' else "") + "\n" * m[0].count("\n"), source)


def end_of_block(code, opening):
    """The place of the brace that closes the one at `opening`."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(code, opening):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    raise ValueError(f"line {code.count(chr(10), 0, opening) + 1}: a brace that nothing closes")


def head_of(code, start, brace):
    """The statement from `start` to the brace after it, without labels and templates, and where it begins."""
    while label := LABEL.match(code, start):
        start = label.end()
    head = code[start:brace]
    while template := TEMPLATE.match(head):
        head = head[template.end():]
    return start, head


def is_function(head, following):
    if head.count("(") != head.count(")"):
        return False
    if LAMBDA.search(head):
        return True
    before, parenthesis, _ = head.partition("(")
    return bool(parenthesis) and following != ";" and ("operator" in before or not ASSIGNED.search(before))


def functions(source):
    """(first line, lines, name) of each function that `source` defines."""
    code = without_texts(source)
    start = place = 0  # of the statement, and how far it is read
    while mark := re.compile(r"[{};]").search(code, place):
        place = mark.end()
        if mark[0] != "{":
            start = place
            continue
        start, head = head_of(code, start, mark.start())
        if NAMESPACE.match(head) or TYPE.match(head):
            start = place
            continue
        end = end_of_block(code, mark.start())
        following = code[end + 1:].lstrip()[:1]
        place = end + 1
        if is_function(head, following):
            while code[end + 1:].lstrip()[:1] in (",", "{"):  # `a_{a}` was an initialiser of a constructor
                end = end_of_block(code, code.index("{", end + 1))
            begin = start + len(code[start:]) - len(code[start:].lstrip())
            name = NAME.search(re.sub(r"<[^<>]*>", "", head))
            first = code.count("\n", 0, begin) + 1
            yield first, code.count("\n", 0, end) + 2 - first, name[1] if name else "lambda"
            start = place = end + 1
