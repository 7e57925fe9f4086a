#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <stormo/base/status.h>

namespace stormo::membership {

// What is said to etcd's JSON gateway (/v3/kv, /v3/auth) about one key, and what it answers. Keys
// and values are bytes, in base64.

/// A key as etcd has it. It counts the times that the key has been written.
struct EtcdKey {
  std::uint64_t version = 0;  ///< 0: it is not there
  std::string value{};
  bool operator==(const EtcdKey&) const = default;
};

/// For /v3/kv/range, whose reads are linearizable.
std::string etcd_read(std::string_view key);
Result<EtcdKey> etcd_read_answer(std::string_view json);

/// For /v3/kv/txn: writes `value` if the key has this version.
std::string etcd_change(std::string_view key, std::uint64_t version, std::string_view value);
struct EtcdChange {
  bool done = false;
  EtcdKey present{};  ///< if it was not done
  bool operator==(const EtcdChange&) const = default;
};
Result<EtcdChange> etcd_change_answer(std::string_view json);

/// For /v3/auth/authenticate; the answer has the token that later requests carry.
std::string etcd_login(std::string_view user, std::string_view password);
Result<std::string> etcd_login_answer(std::string_view json);

/// "etcdserver: permission denied", of an answer that is no success; empty if it is not etcd's.
std::string etcd_error(std::string_view json);

}  // namespace stormo::membership
