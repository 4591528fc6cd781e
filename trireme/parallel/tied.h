#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/parallel/kept.h"

namespace trireme::parallel {

/// Parameters that several ranks of a pipeline hold under one name, as the embedding and the head
/// of a language model do. Each has the gradient of its own use; their sum is everybody's, so that
/// all of them are updated alike.
class TiedParameters {
 public:
  /// Finds them by name, among those that are trained and those that are not, and makes them equal:
  /// the first holder's values are everybody's. Collective over the pipe.
  TiedParameters(const std::vector<Kept>& trained, const std::vector<Kept>& frozen,
                 const comm::Communicator& pipe);

  /// Those that an earlier rank of the pipe holds count and are saved there: here their pieces are
  /// no longer `first`.
  void mark(std::vector<Kept>& kept) const;

  /// Adds up what the holders have in .grad. Collective.
  void sum_gradients() const;

 private:
  struct Group {  // of the same holders
    comm::Communicator holders;
    std::vector<Kept> kept;   // in the same order on each
    std::size_t trained = 0;  // so many of them, the first
  };
  std::vector<Group> groups_;
  std::set<std::string> elsewhere_;  // names that count on an earlier rank
};

}  // namespace trireme::parallel
