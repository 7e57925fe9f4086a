#undef _FORTIFY_SOURCE  // its inline open() could not be defined here
#include "disk_log.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <string_view>

namespace stormo::test {
namespace {

namespace fs = std::filesystem;
using Kind = DiskChange::Kind;

/// A name in a folder.
struct Place {
  int folder = 0;
  std::string name;
};

/// All threads' calls come one after the other, so that the log has the order of the disk.
class Recording {
 public:
  std::recursive_mutex mutex;
  bool on = false;

  void begin(const fs::path& folder) {
    root_ = folder.string() + "/";
    log_ = {};
    live_ = {};
    open_.clear();
    next_node_ = 1;
    on = true;
  }
  const DiskLog& log() const { return log_; }
  void promise() { log_.changes.push_back({.kind = Kind::kPromise}); }

  /// Where `path` leads, seen from the open folder `fd`; empty outside of what is watched.
  std::optional<Place> place(int fd, std::string_view path) const {
    int folder = 0;
    if (std::string(path) + "/" == root_) return Place{};
    if (path.starts_with(root_)) {
      path.remove_prefix(root_.size());
    } else {
      const auto found = open_.find(fd);
      if (path.starts_with('/') || found == open_.end()) return std::nullopt;
      folder = found->second.node;
    }
    for (std::size_t slash; (slash = path.find('/')) != std::string_view::npos;) {
      const int next = node({folder, std::string(path.substr(0, slash))});
      if (next < 0) return std::nullopt;
      folder = next;
      path.remove_prefix(slash + 1);
    }
    return Place{folder, std::string(path)};
  }
  int node(const Place& p) const {
    if (p.name.empty()) return p.folder;
    const auto folder = live_.folders.find(p.folder);
    if (folder == live_.folders.end()) return -1;
    const auto found = folder->second.find(p.name);
    return found == folder->second.end() ? -1 : found->second;
  }

  int create(const Place& p) {
    const int node = next_node_++;
    add({.kind = Kind::kLink, .node = p.folder, .name = p.name, .target = node});
    return node;
  }
  void make_folder(const Place& p) {
    const int node = create(p);
    log_.nodes.folders[node];
    live_.folders[node];
  }
  void make_link(const Place& p, const char* to) { log_.nodes.links[create(p)] = to; }
  void remove(const Place& p) {
    add({.kind = Kind::kUnlink, .node = p.folder, .name = p.name, .target = node(p)});
  }
  void rename(const Place& from, const Place& to, bool exchange) {
    add({.kind = exchange ? Kind::kExchange : Kind::kMove,
         .node = from.folder,
         .name = from.name,
         .target = node(from),
         .other = to.folder,
         .other_name = to.name,
         .other_target = exchange ? node(to) : 0});
  }
  /// Descriptors that are closed inside of libc come back without a close() here.
  void opened(int fd, const std::optional<Place>& p, bool may_create) {
    open_.erase(fd);
    if (!p) return;
    const int known = node(*p);
    if (known >= 0 || may_create) open_[fd] = {known >= 0 ? known : create(*p), 0};
  }
  void closed(int fd) { open_.erase(fd); }
  void written(int fd, const char* data, std::size_t bytes) {
    const auto found = open_.find(fd);
    if (found == open_.end() || live_.folders.contains(found->second.node)) return;
    Open& file = found->second;
    add({.kind = Kind::kWrite, .node = file.node, .offset = file.offset, .bytes = {data, bytes}});
    file.offset += bytes;
  }
  void synced(int fd) {
    const auto found = open_.find(fd);
    if (found != open_.end()) add({.kind = Kind::kSync, .node = found->second.node});
  }

 private:
  struct Open {
    int node = 0;
    std::uint64_t offset = 0;
  };

  void add(DiskChange change) {
    log_.changes.push_back(std::move(change));
    const DiskChange& c = log_.changes.back();
    if (c.kind == Kind::kLink) live_.folders[c.node][c.name] = c.target;
    if (c.kind == Kind::kUnlink || c.kind == Kind::kMove) live_.folders[c.node].erase(c.name);
    if (c.kind == Kind::kMove) live_.folders[c.other][c.other_name] = c.target;
    if (c.kind == Kind::kExchange) {
      live_.folders[c.node][c.name] = c.other_target;
      live_.folders[c.other][c.other_name] = c.target;
    }
  }

  std::string root_;
  DiskLog log_;
  DiskState live_;  // names only
  std::map<int, Open> open_;
  int next_node_ = 1;
};

Recording& recording() {
  static Recording* const one = new Recording;  // calls come until the very end of the program
  return *one;
}

template <class F>
F* real(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

/// Makes the call, and notes it when it succeeds.
template <class Call, class Note>
auto noted(const Call& call, const Note& note) {
  Recording& r = recording();
  const std::lock_guard lock(r.mutex);
  const auto result = call();
  if (r.on && result >= 0) note(r, result);
  return result;
}

using OpenAt = int(int, const char*, int, ...);

int open_noted(int folder, const char* path, int flags, mode_t mode) {
  static OpenAt* const real_open = real<OpenAt>("openat");
  return noted(
      [&] { return real_open(folder, path, flags, mode); },
      [&](Recording& r, int fd) { r.opened(fd, r.place(folder, path), (flags & O_CREAT) != 0); });
}

mode_t mode_of(int flags, va_list& arguments) {
  return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
}

int remove_noted(int folder, const char* path, int flags) {
  static auto* const real_unlink = real<int(int, const char*, int)>("unlinkat");
  return noted([&] { return real_unlink(folder, path, flags); },
               [&](Recording& r, int) {
                 if (const auto p = r.place(folder, path)) r.remove(*p);
               });
}

int rename_noted(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  static auto* const real_rename =
      real<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return noted([&] { return real_rename(from_folder, from, to_folder, to, flags); },
               [&](Recording& r, int) {
                 const auto a = r.place(from_folder, from), b = r.place(to_folder, to);
                 if (a && b) r.rename(*a, *b, flags == RENAME_EXCHANGE);
               });
}

}  // namespace
}  // namespace stormo::test

using namespace stormo::test;

#define STORMO_TEST_OPEN(name, folder, ...)      \
  va_list arguments;                             \
  va_start(arguments, flags);                    \
  const mode_t mode = mode_of(flags, arguments); \
  va_end(arguments);                             \
  return open_noted(folder, path, flags, mode)

extern "C" {
int open(const char* path, int flags, ...) { STORMO_TEST_OPEN(open, AT_FDCWD); }
int open64(const char* path, int flags, ...) { STORMO_TEST_OPEN(open64, AT_FDCWD); }
int openat(int folder, const char* path, int flags, ...) { STORMO_TEST_OPEN(openat, folder); }
int openat64(int folder, const char* path, int flags, ...) { STORMO_TEST_OPEN(openat64, folder); }

int close(int fd) {
  static auto* const real_close = real<int(int)>("close");
  return noted([&] { return real_close(fd); }, [&](Recording& r, int) { r.closed(fd); });
}
ssize_t write(int fd, const void* data, std::size_t bytes) {
  static auto* const real_write = real<ssize_t(int, const void*, std::size_t)>("write");
  return noted([&] { return real_write(fd, data, bytes); },
               [&](Recording& r, ssize_t n) {
                 r.written(fd, static_cast<const char*>(data), static_cast<std::size_t>(n));
               });
}
int fsync(int fd) {
  static auto* const real_fsync = real<int(int)>("fsync");
  return noted([&] { return real_fsync(fd); }, [&](Recording& r, int) { r.synced(fd); });
}
int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const real_mkdir = real<int(const char*, mode_t)>("mkdir");
  return noted([&] { return real_mkdir(path, mode); },
               [&](Recording& r, int) {
                 if (const auto p = r.place(AT_FDCWD, path)) r.make_folder(*p);
               });
}
int symlink(const char* to, const char* path) noexcept {
  static auto* const real_symlink = real<int(const char*, const char*)>("symlink");
  return noted([&] { return real_symlink(to, path); },
               [&](Recording& r, int) {
                 if (const auto p = r.place(AT_FDCWD, path)) r.make_link(*p, to);
               });
}
int rename(const char* from, const char* to) noexcept {
  return rename_noted(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  return rename_noted(from_folder, from, to_folder, to, flags);
}
int unlink(const char* path) noexcept { return remove_noted(AT_FDCWD, path, 0); }
int unlinkat(int folder, const char* path, int flags) noexcept {
  return remove_noted(folder, path, flags);
}
int rmdir(const char* path) noexcept { return remove_noted(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) noexcept {
  const int removed = remove_noted(AT_FDCWD, path, 0);
  return removed != 0 && errno == EISDIR ? remove_noted(AT_FDCWD, path, AT_REMOVEDIR) : removed;
}
}

namespace stormo::test {
namespace {

void add_tree(const DiskState& state, int node, const std::string& path,
              std::map<std::string, std::string>& tree) {
  const auto folder = state.folders.find(node);
  if (folder == state.folders.end()) return;
  for (const auto& [name, child] : folder->second) {
    const std::string where = path + name;
    if (state.folders.contains(child)) {
      tree[where] = "folder";
      add_tree(state, child, where + "/", tree);
    } else if (state.links.contains(child)) {
      tree[where] = "link " + state.links.at(child);
    } else {
      const auto file = state.files.find(child);
      tree[where] = "file " + (file == state.files.end() ? "" : file->second);
    }
  }
}

void apply_to(DiskState& state, const DiskChange& c) {
  const auto forget = [&] {
    auto& folder = state.folders[c.node];
    const auto found = folder.find(c.name);
    if (found != folder.end() && found->second == c.target) folder.erase(found);
  };
  switch (c.kind) {
    case Kind::kLink: state.folders[c.node][c.name] = c.target; break;
    case Kind::kUnlink: forget(); break;
    case Kind::kMove:
      forget();
      state.folders[c.other][c.other_name] = c.target;
      break;
    case Kind::kExchange:
      state.folders[c.node][c.name] = c.other_target;
      state.folders[c.other][c.other_name] = c.target;
      break;
    case Kind::kWrite: {
      std::string& file = state.files[c.node];
      if (file.size() < c.offset + c.bytes.size()) file.resize(c.offset + c.bytes.size());
      file.replace(c.offset, c.bytes.size(), c.bytes);
      break;
    }
    case Kind::kSync:
    case Kind::kPromise: break;
  }
}

using Indices = std::vector<std::size_t>;

/// Of the changes before `count`: those that last, and those that a power cut may lose when the
/// syncs `ignored` were left out.
void split(const DiskLog& log, std::size_t count, const std::set<std::size_t>& ignored,
           Indices& lasting, Indices& pending) {
  std::map<int, std::size_t> last_sync;
  for (std::size_t i = 0; i < count; ++i) {
    if (log.changes[i].kind == Kind::kSync && !ignored.contains(i)) {
      last_sync[log.changes[i].node] = i;
    }
  }
  const auto synced = [&](int node, std::size_t i) {
    const auto found = last_sync.find(node);
    return found != last_sync.end() && found->second > i;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const DiskChange& c = log.changes[i];
    if (c.kind == Kind::kSync || c.kind == Kind::kPromise) continue;
    const bool two = c.kind == Kind::kMove || c.kind == Kind::kExchange;
    (synced(c.node, i) && (!two || synced(c.other, i)) ? lasting : pending).push_back(i);
  }
}

}  // namespace

std::map<std::string, std::string> DiskState::tree() const {
  std::map<std::string, std::string> out;
  add_tree(*this, 0, "", out);
  return out;
}

DiskState DiskLog::apply(const std::vector<std::size_t>& chosen) const {
  DiskState state = nodes;
  for (const std::size_t i : chosen) apply_to(state, changes[i]);
  return state;
}

std::vector<std::map<std::string, std::string>> DiskLog::after_power_cut(
    std::size_t count, const std::set<std::size_t>& ignored) const {
  Indices lasting, pending;
  split(*this, count, ignored, lasting, pending);
  const std::size_t n = pending.size();
  std::set<Indices> choices;
  for (std::size_t i = 0; i <= n; ++i) {
    choices.insert({pending.begin(), pending.begin() + static_cast<std::ptrdiff_t>(i)});
    if (i == n) break;
    choices.insert({pending[i]});
    Indices others = pending;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    choices.insert(std::move(others));
  }
  std::vector<std::map<std::string, std::string>> found;
  for (const Indices& choice : choices) {
    Indices all;
    std::merge(lasting.begin(), lasting.end(), choice.begin(), choice.end(),
               std::back_inserter(all));
    found.push_back(apply(all).tree());
  }
  return found;
}

DiskRecorder::DiskRecorder(const fs::path& folder) {
  const std::lock_guard lock(recording().mutex);
  recording().begin(folder);
}

DiskRecorder::~DiskRecorder() {
  const std::lock_guard lock(recording().mutex);
  recording().on = false;
}

void DiskRecorder::promise() {
  const std::lock_guard lock(recording().mutex);
  recording().promise();
}

DiskLog DiskRecorder::log() const {
  const std::lock_guard lock(recording().mutex);
  return recording().log();
}

std::map<std::string, std::string> tree_of(const fs::path& folder) {
  std::map<std::string, std::string> tree;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::string& what = tree[fs::relative(entry.path().parent_path(), folder) == "."
                                 ? entry.path().filename().string()
                                 : fs::relative(entry.path().parent_path(), folder).string() + "/" +
                                       entry.path().filename().string()];
    if (entry.is_symlink()) {
      what = "link " + fs::read_symlink(entry.path()).string();
    } else if (entry.is_directory()) {
      what = "folder";
    } else {
      std::ifstream in(entry.path(), std::ios::binary);
      what = "file " + std::string(std::istreambuf_iterator<char>(in), {});
    }
  }
  return tree;
}

void make_tree(const fs::path& folder, const std::map<std::string, std::string>& tree) {
  for (const auto& [path, what] : tree) {  // a folder sorts before what lies in it
    if (what == "folder") {
      fs::create_directory(folder / path);
    } else if (what.starts_with("link ")) {
      fs::create_symlink(what.substr(5), folder / path);
    } else {
      std::ofstream(folder / path, std::ios::binary) << what.substr(5);
    }
  }
}

}  // namespace stormo::test
