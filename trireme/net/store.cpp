#include "trireme/net/store.h"

namespace trireme::net {

Store::~Store() = default;

}  // namespace trireme::net
