#include <stormo/data/text/text.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include <stormo/data/data_file.h>

namespace stormo::data {
namespace {

namespace fs = std::filesystem;

bool is_left_out(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with('.') || name == "build";
}

bool is_wanted(const fs::path& path, std::span<const std::string> extensions) {
  const std::string name = path.filename().string();
  return std::ranges::any_of(extensions, [&](const auto& e) { return name.ends_with(e); });
}

/// Paths of the wanted files below `directory`, in ascending order of their names.
Result<std::vector<fs::path>> list_files(const std::string& directory,
                                         std::span<const std::string> extensions) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entries(directory, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    const fs::path& path = entries->path();
    if (is_left_out(path)) {
      entries.disable_recursion_pending();
    } else if (!entries->is_symlink(error) && entries->is_regular_file(error) &&
               is_wanted(path, extensions)) {
      files.push_back(path);
    }
  }
  if (error) return io_error(fmt::format("list {}: {}", directory, error.message()));
  std::ranges::sort(files);
  return files;
}

}  // namespace

Result<std::string> read_text(const std::string& path) {
  STORMO_ASSIGN_OR_RETURN(std::string text, read_data_file(path));
  if (text.empty()) {
    return invalid_argument(fmt::format("{}: the text is empty; set data.path to another", path));
  }
  return text;
}

Result<std::string> read_text_tree(const std::string& directory,
                                   std::span<const std::string> extensions) {
  STORMO_ASSIGN_OR_RETURN(const std::vector<fs::path> files, list_files(directory, extensions));
  std::string all;
  for (const fs::path& path : files) {
    STORMO_ASSIGN_OR_RETURN(const std::string text, read_data_file(path));
    if (text.empty() || text.find('\0') != std::string::npos) continue;
    all += text;
    if (all.back() != '\n') all += '\n';
  }
  if (all.empty()) {
    return invalid_argument(fmt::format(
        "{}: no text in files ending in {}; set data.path to a text file or to a folder "
        "that holds some, or data.extensions to the endings of yours",
        directory, fmt::join(extensions, ", ")));
  }
  return all;
}

Result<std::string> read_texts(std::span<const std::string> paths,
                               std::span<const std::string> extensions) {
  std::string all;
  for (const std::string& path : paths) {
    std::error_code ignored;  // what cannot be examined is reported when it is opened
    STORMO_ASSIGN_OR_RETURN(const std::string text, fs::is_directory(path, ignored)
                                                        ? read_text_tree(path, extensions)
                                                        : read_text(path));
    all += text;
  }
  return all;
}

}  // namespace stormo::data
