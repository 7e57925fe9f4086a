#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

// The wheel of torch has the header of ProcessGroupGloo, but not those of Gloo that this includes.
// It only points to what is in them, so that names are enough.
namespace gloo {

struct Context {
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace rendezvous {
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};
}  // namespace rendezvous

namespace transport {
struct Device {};
struct UnboundBuffer {};
}  // namespace transport

}  // namespace gloo
