#pragma once

#include <stormo/base/status.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>

namespace stormo::launch {

using transport::Descriptor;

/// A sealed memory file with the secret in hexadecimal digits, which a rank inherits. It has no
/// name in any file system and does not appear in argv or environment. It is close-on-exec until
/// the child that inherits it clears the flag.
Result<Descriptor> make_secret_file(const transport::Secret& secret);

/// Reads the secret from an inherited descriptor and closes it.
Result<transport::Secret> take_secret(int descriptor);

}  // namespace stormo::launch
