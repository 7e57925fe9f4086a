#pragma once

#include <string>
#include <string_view>

namespace stormo {

/// Text that others have written (ranks, other hosts, files and their names), as a terminal may get
/// it: control characters, those that turn the direction of writing, and bytes that are no UTF-8
/// become "\x1b", "\u202e", "\xff". New lines and tabs stay. Text that is fine comes back as it is.
std::string printable(std::string_view text);

/// The same for what must stay in its line: new lines become "\n".
std::string printable_line(std::string_view text);

}  // namespace stormo
