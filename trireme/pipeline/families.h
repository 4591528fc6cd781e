#pragma once

#include "trireme/pipeline/generators.h"

namespace trireme::pipeline {

// The generators, a file for each family. `make` has checked the shape.

Schedule make_gpipe(Shape shape);
Schedule make_1f1b(Shape shape);
Schedule make_interleaved(Shape shape);
Schedule make_looped_bfs(Shape shape);
Schedule make_zb_h1(Shape shape);
Schedule make_zb_v(Shape shape);
Schedule make_dualpipe_v(Shape shape);
Schedule make_pipedream(Shape shape);
Schedule make_pipedream_2bw(Shape shape);

/// A schedule with empty programs, its stages placed in a loop: rank 0, 1, 2, 0, 1, 2.
Schedule in_a_loop(Shape shape);
/// The same with the stages in a V: rank 0, 1, 2, 2, 1, 0.
Schedule in_a_v(Shape shape);

/// Starts a rank's program with the forwards that fill the pipe, one for each rank behind it.
/// Returns their number.
int warm_up(Program& program, int rank, Shape shape);

}  // namespace trireme::pipeline
