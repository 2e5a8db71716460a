// The built-in driver `sim`: a mock accelerator on the host's cores.
//
// Its memory faults when host code touches it, its copies and launches cost time, and its time is
// virtual: a work starts when the one before ended and takes what the model says, however late the
// simulator itself comes to it.
#pragma once

#include "drivers/driver.h"

namespace gapless::sim {

const gapless_driver* driver();

}  // namespace gapless::sim
