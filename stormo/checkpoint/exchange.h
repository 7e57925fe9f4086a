#pragma once

#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::checkpoint {

/// `text` of `root` on every rank. A collective.
Status broadcast_text(comm::Communicator& world, std::string& text, Rank root = 0);

/// The ranks' texts by rank, on rank 0; empty elsewhere. A collective.
Result<std::vector<std::string>> gather_texts(comm::Communicator& world, const std::string& text);

/// What rank 0 found, on every rank: its value or its failure. A collective.
Result<std::string> broadcast_outcome(comm::Communicator& world, const Result<std::string>& mine);

/// A text or a failure as one text, to be sent.
std::string encode_outcome(const Result<std::string>& outcome);
Result<std::string> decode_outcome(const std::string& text);

}  // namespace stormo::checkpoint
