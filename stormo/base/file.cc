#include <stormo/base/file.h>

#include <fstream>

namespace stormo {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace stormo
