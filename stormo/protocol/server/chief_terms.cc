#include <stormo/protocol/server/chief_terms.h>

namespace stormo::protocol {

const ChiefTerm& ChiefTerms::propose(std::int32_t worker) {
  proposed_ = {.number = current_.number + 1, .worker = worker};
  is_proposing_ = true;
  return proposed_;
}

void ChiefTerms::confirm() {
  if (is_proposing_) current_ = proposed_;
  is_proposing_ = false;
}

bool ChiefTerms::learn(const ChiefTerm& told) {
  if (told.number <= current_.number) return false;
  current_ = told;
  is_proposing_ = false;
  return true;
}

}  // namespace stormo::protocol
