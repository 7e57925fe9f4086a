#pragma once

#include <string>
#include <string_view>

#include <stormo/base/status.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>

namespace stormo::launch {

using transport::Descriptor;

/// A command that makes a file for read_secret_file().
inline constexpr std::string_view kMakeSecret = "(umask 077; openssl rand -hex 32 > secret)";

/// A sealed memory file with the secret in hexadecimal digits, which a rank inherits. It has no
/// name in any file system and does not appear in argv or environment. It is close-on-exec until
/// the child that inherits it clears the flag.
Result<Descriptor> make_secret_file(const transport::Secret& secret);

/// Reads the secret from an inherited descriptor and closes it.
Result<transport::Secret> take_secret(int descriptor);

/// Reads a cluster's secret from a file that nobody else can read: 64 hexadecimal digits, with
/// blanks or line ends after them. Never blocks. kInvalidArgument with the remedy for any other
/// file.
Result<transport::Secret> read_secret_file(const std::string& path);

}  // namespace stormo::launch
