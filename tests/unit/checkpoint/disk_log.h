#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

// What a program does to the files below one folder, as a log of changes. The program that links
// this has an open(), write(), fsync(), rename() and so on of its own, which call those of libc and
// note what succeeded. The changes are of nodes: folders, files and links, whatever their names.
namespace stormo::test {

struct DiskChange {
  enum class Kind {
    kLink,      ///< `name` in folder `node` becomes `target`
    kUnlink,    ///< `name`, which was `target`, goes
    kMove,      ///< the same, and `other_name` in folder `other` becomes `target`
    kExchange,  ///< `name` becomes `other_target`, `other_name` becomes `target`
    kWrite,     ///< `bytes` at `offset` of file `node`
    kSync,      ///< all changes of `node` before this one last
    kPromise,   ///< by the test: whoever did all this says that it lasts
  };
  Kind kind;
  int node = 0;
  std::string name{};
  int target = 0;
  int other = 0;
  std::string other_name{};
  int other_target = 0;
  std::uint64_t offset = 0;
  std::string bytes{};
};

/// Node 0 is the folder that is watched.
struct DiskState {
  std::map<int, std::map<std::string, int>> folders{{0, {}}};
  std::map<int, std::string> files{};
  std::map<int, std::string> links{};  ///< what they point to

  /// What lies below node 0: path -> kind and content. What a name leads to that has lost its
  /// content is an empty file or folder.
  std::map<std::string, std::string> tree() const;
};

struct DiskLog {
  std::vector<DiskChange> changes{};
  DiskState nodes{};  ///< which nodes are folders, and which are links

  /// The changes with these indices, in order, made to an empty folder.
  DiskState apply(const std::vector<std::size_t>& chosen) const;
  /// What the disk may hold after a power cut when the first `count` changes were made, and the
  /// syncs `ignored` were left out: of the changes that no sync has made last none, all, each
  /// alone, all but one, and every beginning.
  std::vector<std::map<std::string, std::string>> after_power_cut(
      std::size_t count, const std::set<std::size_t>& ignored = {}) const;
};

/// Watches `folder`, which is empty, while it lives. One at a time.
class DiskRecorder {
 public:
  explicit DiskRecorder(const std::filesystem::path& folder);
  ~DiskRecorder();
  DiskRecorder(const DiskRecorder&) = delete;
  DiskRecorder& operator=(const DiskRecorder&) = delete;

  void promise();
  DiskLog log() const;
};

/// The same map as DiskState::tree(), of a folder on the disk.
std::map<std::string, std::string> tree_of(const std::filesystem::path& folder);
/// Makes an empty folder hold such a tree.
void make_tree(const std::filesystem::path& folder, const std::map<std::string, std::string>& tree);

}  // namespace stormo::test
