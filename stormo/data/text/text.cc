#include <stormo/data/text/text.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include <stormo/base/text.h>
#include <stormo/data/data_file.h>

namespace stormo::data {
namespace {

namespace fs = std::filesystem;

/// Why a file cannot be used as text; empty if it can.
std::string problem_of(const fs::path& path, const Result<std::string>& text) {
  if (!text.ok()) return text.status().message();
  if (text->find('\0') == std::string::npos) return "";
  return path.string() + ": a zero byte is in it, so it is no text in UTF-8";
}

Status add_file(const fs::path& path, const std::string& directory, OnError on_error, Texts& all) {
  const std::string below = path.lexically_relative(directory).string();
  Result<std::string> text = read_data_file(path);
  std::string problem = problem_of(path, text);
  if (!problem.empty()) {
    if (on_error == OnError::kFail) {
      return invalid_argument(problem + "; convert or remove it, or set data.on_error = \"skip\"");
    }
    all.files.skip(below, std::move(problem));
  } else if (text->empty()) {
    all.files.leave_out("empty", below);
  } else {
    all.files.take();
    all.text += *text;
    if (all.text.back() != '\n') all.text += '\n';
  }
  return {};
}

Result<Texts> read_folder(const std::string& directory, const std::vector<std::string>& extensions,
                          OnError on_error) {
  Texts all;
  TreeRules rules{.endings = extensions, .ignored_folders = {"build"}, .on_error = on_error};
  std::ranges::transform(extensions, rules.endings.begin(), lower_case);
  FileTree tree(directory, std::move(rules), all.files);
  std::vector<std::string> found;
  STORMO_RETURN_IF_ERROR(tree.add_files(directory, found));
  std::vector<fs::path> files(found.begin(), found.end());
  std::ranges::sort(files);  // by the parts of the paths
  for (const fs::path& path : files) {
    STORMO_RETURN_IF_ERROR(add_file(path, directory, on_error, all));
  }
  if (all.text.empty()) {
    const std::string others = all.files.summary();
    return invalid_argument(fmt::format(
        "{}: no text in files ending in {}; set data.path to a text file or to a folder "
        "that holds some, or data.extensions to the endings of yours{}{}",
        directory, fmt::join(extensions, ", "), others.empty() ? "" : ". Left out: ", others));
  }
  return all;
}

}  // namespace

Result<std::string> read_text(const std::string& path) {
  STORMO_ASSIGN_OR_RETURN(std::string text, read_data_file(path));
  if (text.empty()) {
    return invalid_argument(fmt::format("{}: the text is empty; set data.path to another", path));
  }
  return text;
}

Result<Texts> read_texts(const std::string& path, const std::vector<std::string>& extensions,
                         OnError on_error) {
  std::error_code ignored;  // what cannot be examined is reported when it is opened
  if (fs::is_directory(path, ignored)) return read_folder(path, extensions, on_error);
  Texts one;
  STORMO_ASSIGN_OR_RETURN(one.text, read_text(path));
  one.files.take();
  return one;
}

}  // namespace stormo::data
