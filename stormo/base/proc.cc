#include <stormo/base/proc.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include <stormo/base/text.h>

namespace stormo {

std::optional<ProcessState> process_state(const std::filesystem::path& folder) {
  std::ifstream file(folder / "stat");
  std::string line;
  std::getline(file, line, '\0');  // the name may hold anything, also line ends and brackets
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  ProcessState state;
  fields >> state.letter >> state.parent;
  std::string skipped;
  for (int field = 5; field < 22; ++field) fields >> skipped;
  return fields >> state.started ? std::optional(state) : std::nullopt;
}

std::vector<pid_t> numbers_in(const std::filesystem::path& folder) {
  std::vector<pid_t> numbers;
  std::error_code ended;
  for (std::filesystem::directory_iterator it(folder, ended), end; it != end && !ended;
       it.increment(ended)) {
    const auto number = number_in<pid_t>(it->path().filename().native());
    if (number) numbers.push_back(*number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

}  // namespace stormo
