#include <stormo/data/file_tree.h>

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include <stormo/base/text.h>

namespace stormo::data {
namespace {

/// By different paths of links; of folders that all lead to each other there are n! paths.
constexpr int kMostVisits = 100;
/// Reasons of their own; further endings are counted together.
constexpr std::size_t kMostEndings = 8;
constexpr std::string_view kCannotBeRead = "cannot be read";

std::string name_of(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

std::string ending_of(const std::string& path) {
  return lower_case(std::filesystem::path(path).extension().string());
}

}  // namespace

void FileCount::leave_out(std::string_view why, std::string_view first) {
  const auto same = std::ranges::find(left_out_, why, &LeftOut::why);
  if (same != left_out_.end()) {
    ++same->count;
    return;
  }
  left_out_.push_back({.why = std::string(why), .count = 1, .first = std::string(first)});
}

void FileCount::skip(std::string_view path, std::string message) {
  leave_out(kCannotBeRead, path);
  skipped_.push_back(std::move(message));
}

std::string FileCount::summary() const {
  std::string out;
  for (const LeftOut& l : left_out_) {
    out += fmt::format("{}{} {} ({})", out.empty() ? "" : ", ", l.count, l.why, l.first);
  }
  return out;
}

bool FileTree::is_wanted(std::string_view name) const {
  const std::string in_lower_case = lower_case(name);
  return std::ranges::any_of(rules_.endings,
                             [&](const std::string& e) { return in_lower_case.ends_with(e); });
}

void FileTree::leave_out(std::string_view why, const std::string& path) {
  const std::string below = std::filesystem::path(path).lexically_relative(root_).string();
  count_.leave_out(why, below);
}

Status FileTree::unreadable(const std::string& path, std::string_view why) {
  std::error_code no_link;
  const auto target = std::filesystem::read_symlink(path, no_link);
  const std::string what = no_link ? path : fmt::format("{} (a link to {})", path, target.string());
  if (rules_.on_error == OnError::kFail) {
    return {Code::kInvalidArgument,
            fmt::format("{}: {}; mend or remove it, or set data.on_error = \"skip\"", what, why)};
  }
  const std::string below = std::filesystem::path(path).lexically_relative(root_).string();
  count_.skip(below, fmt::format("{}: {}", what, why));
  return {};
}

Result<std::vector<std::string>> FileTree::names_in(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), ::closedir);
  if (folder == nullptr) {
    STORMO_RETURN_IF_ERROR(unreadable(path, std::strerror(errno)));
    return names;
  }
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(folder.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (name.starts_with('.')) {
      leave_out("hidden", path + "/" + std::string(name));
    } else {
      names.emplace_back(name);
    }
  }
  if (errno != 0) STORMO_RETURN_IF_ERROR(unreadable(path, std::strerror(errno)));
  std::ranges::sort(names);
  return names;
}

Status FileTree::add_files(const std::string& path, std::vector<std::string>& files) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return unreadable(path, std::strerror(errno));
  const Folder folder{info.st_dev, info.st_ino};
  if (std::ranges::count(above_, folder) > 0) {
    leave_out("a link to a folder that it lies in", path);
    return {};
  }
  if (++visits_[folder] > kMostVisits) {
    return invalid_argument(
        fmt::format("{}: links lead to this folder by more than {} paths; remove some links", path,
                    kMostVisits));
  }
  STORMO_ASSIGN_OR_RETURN(const std::vector<std::string> names, names_in(path));
  above_.push_back(folder);
  for (const std::string& name : names) {
    STORMO_RETURN_IF_ERROR(add_entry((std::filesystem::path(path) / name).string(), files));
  }
  above_.pop_back();
  return {};
}

Status FileTree::add_entry(const std::string& path, std::vector<std::string>& files) {
  const std::string name = name_of(path);
  const std::string ending = ending_of(path);
  const auto leave_out_by_ending = [&] {
    const auto& known = count_.left_out();
    const std::string why = ending.empty() ? "without an ending" : "ending " + ending;
    const bool is_new = std::ranges::find(known, why, &LeftOut::why) == known.end();
    leave_out(is_new && known.size() >= kMostEndings ? "other endings" : why, path);
  };
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    const int error = errno;
    if (is_wanted(name) || ending.empty()) return unreadable(path, std::strerror(error));
    leave_out_by_ending();  // whatever it is
    return {};
  }
  if (S_ISDIR(info.st_mode)) {
    if (std::ranges::count(rules_.ignored_folders, name) == 0) return add_files(path, files);
    leave_out(fmt::format("a folder named {}", name), path);
  } else if (!is_wanted(name)) {
    leave_out_by_ending();
  } else if (!S_ISREG(info.st_mode)) {
    return unreadable(path, "neither a file nor a folder");
  } else {
    files.push_back(path);
  }
  return {};
}

Result<std::vector<std::string>> FileTree::folders() {
  struct stat info {};
  if (::stat(root_.c_str(), &info) != 0) return errno_error("look at " + root_);
  above_ = {{info.st_dev, info.st_ino}};
  STORMO_ASSIGN_OR_RETURN(const std::vector<std::string> names, names_in(root_));
  std::vector<std::string> folders;
  for (const std::string& name : names) {
    const std::string path = (std::filesystem::path(root_) / name).string();
    if (::stat(path.c_str(), &info) != 0) {
      STORMO_RETURN_IF_ERROR(unreadable(path, std::strerror(errno)));
    } else if (!S_ISDIR(info.st_mode)) {
      leave_out("beside the folders", path);
    } else if (Folder{info.st_dev, info.st_ino} == above_.front()) {
      leave_out("a link to a folder that it lies in", path);
    } else {
      folders.push_back(name);
    }
  }
  return folders;
}

}  // namespace stormo::data
