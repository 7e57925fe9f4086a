"""C++ sources as far as tools/function_lint and tools/docs_names read them: by braces, without a compiler."""
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
