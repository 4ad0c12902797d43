"""The coordinators of sweeps, which choose parameters with Optuna and record the outcomes of trials.

On hosts of the fleet file, the coordinator of a sweep is a process on the primary's host, which starts the trials
(`coordinator`). On a cluster, the job of each trial has a process that accesses the study (`study_process`). Both run
under the training programs' Python, in which Optuna is installed. The rest of the agent runs without Optuna, and
imports only modules of this package that do not need it, such as `trial_outcomes`.
"""
