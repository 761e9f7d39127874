"""universe"""
