#pragma once

#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include <stormo/comm/job/bulletin.h>

namespace stormo::testing {

/// A Bulletin in files of a folder, as PyTorch's FileStore is.
class FileBulletin final : public comm::Bulletin {
 public:
  explicit FileBulletin(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
  }
  Status set(const std::string& key, const std::string& value) override {
    const std::filesystem::path path = path_of(key);
    // complete before it has its name; of several that set one key each has its own
    const std::filesystem::path staged =
        path.string() + std::to_string(::getpid()) + std::to_string(::gettid());
    std::ofstream(staged) << value;
    std::filesystem::rename(staged, path);
    return {};
  }
  Result<std::string> get(const std::string& key, Deadline by) override {
    while (!std::filesystem::exists(path_of(key))) {
      if (by.expired()) return Status(Code::kDeadlineExceeded, key + " is not there");
      ::poll(nullptr, 0, 1);
    }
    std::ifstream in(path_of(key));
    return std::string(std::istreambuf_iterator<char>(in), {});
  }

 private:
  std::filesystem::path path_of(std::string key) const {
    for (char& c : key) c = c == '/' ? '-' : c;
    return folder_ / key;
  }
  const std::filesystem::path folder_;
};

}  // namespace stormo::testing
