#pragma once

#include <string>
#include <string_view>

namespace stormo {

/// Makes text from other sources (ranks, other hosts, files and their names) safe for a terminal:
/// control characters, characters that change the direction of text, and bytes that are not UTF-8
/// become "\x1b", "\u202e", "\xff". New lines and tabs are kept. Safe text is returned unchanged.
std::string printable(std::string_view text);

/// The same for text that must stay on one line: new lines become "\n".
std::string printable_line(std::string_view text);

/// For a message behind a prefix of ours ("stormo: "): as printable(), but no line begins at the
/// left margin, so that none can pass for another message. Of very long text the first 64 KiB, and
/// how much was left out.
std::string message_text(std::string_view text);

/// For what others said (an exception, a worker) inside a message of ours: the first 8 KiB, lines
/// indented by four, which lines of ours are not.
std::string quoted_text(std::string_view text);

}  // namespace stormo
