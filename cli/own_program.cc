#include <cli/own_program.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include <cli/build_facts.h>

namespace stormo::cli {

namespace fs = std::filesystem;

Result<std::string> own_program() {
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (failed) return io_error("cannot find this program's own file in /proc/self/exe");
  return program.string();
}

Result<std::vector<std::string>> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (words.empty()) return io_error("cannot read this program's arguments in /proc/self/cmdline");
  words.erase(words.begin());
  return words;
}

Result<std::string> launching_program() {
  STORMO_ASSIGN_OR_RETURN(const fs::path own, own_program());
  if (own.filename() != kTrainProgram) return own.string();
  const fs::path folder = own.parent_path();
  for (const fs::path& path : {folder / "stormo", folder / "../.." / kProgramFolder / "stormo"}) {
    std::error_code absent;
    const fs::path whole = fs::canonical(path, absent);
    if (!absent) return whole.string();
  }
  return invalid_argument(own.string() +
                          ": 'stormo' is missing, which starts ranks; install all of Stormo again");
}

}  // namespace stormo::cli
