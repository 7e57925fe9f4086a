#pragma once

#include <string>
#include <string_view>

namespace stormo::membership {

/// How the others reach a member: what stands in its entry of a record.
struct MemberAddress {
  std::string links;  ///< of its MemberLinks: "10.0.0.2:4000"
  std::string store;  ///< that it serves for the groups in which it is rank 0
};

inline std::string to_text(const MemberAddress& address) {
  return address.links + ' ' + address.store;
}
/// A text without a Store is the address of the links alone.
inline MemberAddress parse_member_address(std::string_view text) {
  const std::size_t end = text.find(' ');
  if (end == std::string_view::npos) return {std::string(text), {}};
  return {std::string(text.substr(0, end)), std::string(text.substr(end + 1))};
}

}  // namespace stormo::membership
