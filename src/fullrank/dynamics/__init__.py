"""How networks learn under joint-embedding objectives: vector fields, closed forms and discretisations, in float64.

One theory a family of modules, imported by name (`from fullrank.dynamics import two_view`), since they share names such as `descend` and
`modes`.

    flow                                     gradient flow and gradient descent of any loss
    two_view, _modes, _small, _steps         FroSSL's and Barlow's loss of two linear networks
    stepwise, stepwise_kernel                Barlow's loss of one linear network or kernel machine, learned in steps
    pairs, trace, orthonormal, optimum       trace losses over pairs: free, under orthogonality constraints, and where they end
    nonlinear, tangent                       two layers with an activation beside linear ones
    fixed_projector                          a projector that is not trained
    infonce, _modes, _alignment, _depth, _strength, _training      linear and ReLU layers under InfoNCE
"""
