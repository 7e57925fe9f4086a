#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::data {

/// What to do with what cannot be read: a broken image, a link to nowhere, a folder without
/// permission.
enum class OnError : std::uint8_t {
  kFail,  ///< an error names it
  kSkip,  ///< leave it out, and say so
};

/// Something that was left out, with its reason.
struct LeftOut {
  std::string why;         ///< "ending .webp"
  std::int64_t count = 0;  ///< files or folders; nobody has looked into a folder that is left out
  std::string first;       ///< the first of them, relative to the folder of the data
};

/// The files of a data set: how many were taken, and what was left out beside them.
class FileCount {
 public:
  void take(std::int64_t files = 1) { taken_ += files; }
  void leave_out(std::string_view why, std::string_view first);
  /// For OnError::kSkip: left out too; `message` names it and says what is wrong.
  void skip(std::string_view path, std::string message);

  std::int64_t taken() const { return taken_; }
  /// One entry for each reason, in the order in which they were met.
  const std::vector<LeftOut>& left_out() const { return left_out_; }
  /// The messages of skip().
  const std::vector<std::string>& skipped() const { return skipped_; }
  /// "12 ending .webp (a/1.webp), 1 hidden (.git)"; empty if nothing was left out.
  std::string summary() const;

 private:
  std::int64_t taken_ = 0;
  std::vector<LeftOut> left_out_;
  std::vector<std::string> skipped_;
};

/// Which files of a folder are wanted.
struct TreeRules {
  std::vector<std::string> endings;          ///< of the wanted files, in lower case: ".txt"
  std::vector<std::string> ignored_folders;  ///< by name
  OnError on_error = OnError::kFail;
};

/// Walks through folders. Links are followed, also to folders; a link to a folder that it lies in
/// is left out, so a cycle ends. Hidden files and folders are left out. Endings may be in upper
/// case. What is left out is counted. For what cannot be read see TreeRules::on_error.
class FileTree {
 public:
  /// `root`: the folder of the data; `count` outlives this.
  FileTree(std::string root, TreeRules rules, FileCount& count)
      : root_(std::move(root)), rules_(std::move(rules)), count_(count) {}

  /// Appends the wanted files of the folder `path` (root, or below), in no certain order. kIo,
  /// kInvalidArgument.
  Status add_files(const std::string& path, std::vector<std::string>& files);
  /// Names of the folders in root, ascending. Files beside them are left out.
  Result<std::vector<std::string>> folders();

 private:
  struct Folder {
    std::uint64_t device, inode;
    auto operator<=>(const Folder&) const = default;
  };
  Result<std::vector<std::string>> names_in(const std::string& path);
  Status add_entry(const std::string& path, std::vector<std::string>& files);
  /// The number of the last error is that of what could not be read.
  Status unreadable(const std::string& path, std::string_view why);
  void leave_out(std::string_view why, const std::string& path);
  bool is_wanted(std::string_view name) const;

  std::string root_;
  TreeRules rules_;
  FileCount& count_;
  std::vector<Folder> above_;  // the folders that are being walked through, the outermost first
  std::map<Folder, int> visits_;
};

}  // namespace stormo::data
