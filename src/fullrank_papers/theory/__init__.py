"""The dynamics of learning under joint-embedding objectives: vector fields, closed forms and discretisations, in
float64.

Import the modules by name (`from fullrank_papers.theory import two_view`), since several define the same names, for
example `gradient_descent`.

    flow                     gradient flow and gradient descent of any loss
    two_view, two_view_modes FroSSL's and the Barlow Twins loss of two linear networks, and its modes
    small_initialization     the same from small random weights
    stepwise                 the Barlow Twins loss of one linear network or kernel machine, learned in steps
    contrastive_pairs        trace losses over pairs without constraints
    trace, optimum           trace losses under orthogonality constraints, and their minima and limits
    nonlinear                two layers with an activation, compared with linear ones
    fixed_projector          a projector that is not trained
    infonce                  linear and ReLU layers under InfoNCE
    infonce_alignment        singular values and vectors of those layers
    augmentation_strength    the strength of augmentation at which InfoNCE collapses
"""
